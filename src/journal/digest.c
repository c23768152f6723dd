/*
 * digest.c
 *		SHA-256 over fields: each is its length in 8 bytes, the highest first, and its
 *		bytes; the length of a NULL is all ones.
 */
#include "postgres.h"

#include "common/cryptohash.h"
#include "common/sha2.h"
#include "port/pg_bswap.h"

#include "core/compat.h"
#include "journal/digest.h"

struct Digest
{
	pg_cryptohash_ctx *hash;
};

StaticAssertDecl(DIGEST_BYTES == PG_SHA256_DIGEST_LENGTH, "a digest is SHA-256");

compat_noreturn static void digest_failed(Digest *digest);

static void
digest_failed(Digest *digest)
{
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("could not compute a digest: %s", pg_cryptohash_error(digest->hash))));
}

void
digest_raw(Digest *digest, const void *bytes, size_t length)
{
	if (pg_cryptohash_update(digest->hash, bytes, length) < 0)
		digest_failed(digest);
}

static void
add_number(Digest *digest, uint64 number)
{
	uint64		bytes = pg_hton64(number);

	digest_raw(digest, &bytes, sizeof(bytes));
}

Digest *
digest_open(void)
{
	Digest	   *digest = palloc(sizeof(Digest));

	digest->hash = pg_cryptohash_create(PG_SHA256);
	if (digest->hash == NULL || pg_cryptohash_init(digest->hash) < 0)
		digest_failed(digest);
	return digest;
}

Digest *
digest_begin(const char *what, int version)
{
	Digest	   *digest = digest_open();

	digest_text(digest, what);
	digest_int(digest, version);
	return digest;
}

void
digest_bytes(Digest *digest, const void *bytes, size_t length)
{
	add_number(digest, length);
	digest_raw(digest, bytes, length);
}

void
digest_text(Digest *digest, const char *text)
{
	if (text == NULL)
		add_number(digest, PG_UINT64_MAX);
	else
		digest_bytes(digest, text, strlen(text));
}

void
digest_int(Digest *digest, int64 number)
{
	add_number(digest, sizeof(number));
	add_number(digest, (uint64) number);
}

void
digest_end(Digest *digest, uint8 result[DIGEST_BYTES])
{
	if (pg_cryptohash_final(digest->hash, result, DIGEST_BYTES) < 0)
		digest_failed(digest);
	pg_cryptohash_free(digest->hash);
	pfree(digest);
}
