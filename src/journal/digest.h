/*
 * digest.h
 *		SHA-256 over fields, each with its length: no two lists of fields are alike.
 */
#ifndef RECONCILE_DIGEST_H
#define RECONCILE_DIGEST_H

#define DIGEST_BYTES	32

typedef struct Digest Digest;

/* What is digested is named first, and the version of the list of its fields. */
extern Digest *digest_begin(const char *what, int version);

/* NULL is not the same as ''. */
extern void digest_text(Digest *digest, const char *text);
extern void digest_bytes(Digest *digest, const void *bytes, size_t length);
extern void digest_int(Digest *digest, int64 number);

/* The same without a heading, for digests that others have laid down; raw bytes have no length. */
extern Digest *digest_open(void);
extern void digest_raw(Digest *digest, const void *bytes, size_t length);

/* Frees it. */
extern void digest_end(Digest *digest, uint8 result[DIGEST_BYTES]);

#endif							/* RECONCILE_DIGEST_H */
