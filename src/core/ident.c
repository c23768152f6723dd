/*
 * ident.c
 *		Checks of identifiers: reconciler ids, holders, entities.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "core/errors.h"
#include "core/ident.h"

#define REASON_MAX	1000		/* bytes */

char *
text_arg(FunctionCallInfo fcinfo, int n, const char *arg)
{
	if (PG_ARGISNULL(n))
		arg_null(arg);
	return text_to_cstring(PG_GETARG_TEXT_PP(n));
}

char *
reason_arg(FunctionCallInfo fcinfo, int n)
{
	char	   *reason = text_arg(fcinfo, n, "reason");

	if (reason[0] == '\0' || strlen(reason) > REASON_MAX)
		arg_invalid("reason", reason[0] == '\0' ? "must not be empty" : "is too long", "It is 1 to 1,000 bytes.");
	return reason;
}

bool
reconciler_id_valid(const char *value)
{
	size_t		length = strlen(value);
	bool		good = length >= 1 && length <= RECONCILER_ID_MAX;

	for (size_t i = 0; good && i < length; i++)
	{
		char		c = value[i];

		good = (c >= 'a' && c <= 'z') || c == '_' || (i > 0 && c >= '0' && c <= '9');
	}
	return good;
}

void
reconciler_id_check(const char *value, const char *arg)
{
	if (!reconciler_id_valid(value))
		arg_invalid(arg, "is not a reconciler id",
					"A reconciler id is 1 to 48 bytes: a lower-case letter or underscore, then lower-case letters, digits and underscores.");
}

/*
 * Characters that a reader of a log or a table could not see, or that reorder
 * what he sees: controls, zero-width and bidirectional formatting, variation selectors,
 * fillers, tags.
 */
static bool
is_invisible(pg_wchar c)
{
	return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0xad || c == 0x34f || c == 0x61c ||
		c == 0x115f || c == 0x1160 || (c >= 0x180b && c <= 0x180e) ||
		(c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
		(c >= 0x2060 && c <= 0x206f) || c == 0x3164 || (c >= 0xfe00 && c <= 0xfe0f) ||
		c == 0xfeff || c == 0xffa0 || (c >= 0xfff9 && c <= 0xfffb) || (c >= 0xe0000 && c <= 0xe01ef);
}

/* NULL: in this encoding nobody knows what bytes beyond ASCII are. */
static const unsigned char *
as_utf8(const char *value)
{
	int			encoding = GetDatabaseEncoding();
	int			length = strlen(value);
	Oid			conversion;
	unsigned char *utf8;

	if (encoding == PG_UTF8)
		return (const unsigned char *) value;
	conversion = FindDefaultConversionProc(encoding, PG_UTF8);
	if (!OidIsValid(conversion))
		return NULL;
	utf8 = palloc((Size) length * MAX_CONVERSION_GROWTH + 1);
	if (pg_do_encoding_conversion_buf(conversion, encoding, PG_UTF8, (unsigned char *) unconstify(char *, value), length,
									  utf8, length * MAX_CONVERSION_GROWTH + 1, true) < length)
		return NULL;
	return utf8;
}

bool
text_has_invisible(const char *value)
{
	const unsigned char *utf8 = as_utf8(value);

	if (utf8 == NULL)
	{
		for (const char *p = value; *p; p += pg_mblen(p))
		{
			if ((unsigned char) *p < 0x20 || *p == 0x7f)
				return true;
		}
		return false;
	}
	for (const unsigned char *p = utf8; *p; p += pg_utf_mblen(p))
	{
		if (is_invisible(utf8_to_unicode(p)))
			return true;
	}
	return false;
}

/* White_Space of Unicode. */
static bool
is_space(pg_wchar c)
{
	return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
		(c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool
text_is_blank(const char *value)
{
	const unsigned char *utf8 = as_utf8(value);

	if (utf8 == NULL)
		return strspn(value, " \t\n\v\f\r") == strlen(value);
	for (const unsigned char *p = utf8; *p; p += pg_utf_mblen(p))
	{
		if (!is_space(utf8_to_unicode(p)))
			return false;
	}
	return true;
}

bool
sqlstate_valid(const char *value)
{
	return strlen(value) == 5 && strspn(value, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5;
}

void
holder_id_check(const char *value, const char *arg)
{
	size_t		length = strlen(value);

	if (length < 1 || length > HOLDER_ID_MAX)
		arg_invalid(arg, length < 1 ? "must not be empty" : "is too long",
					"It is 1 to 256 bytes.");
	if (text_has_invisible(value))
		arg_invalid(arg, "contains a character that cannot be seen",
					"Control, bidirectional and zero-width characters are refused.");
}

bool
entity_id_valid(const char *value, size_t length)
{
	return length <= ENTITY_ID_MAX;
}

void
entity_id_check(const char *value, const char *arg)
{
	if (!entity_id_valid(value, strlen(value)))
		arg_invalid(arg, "is too long", "An entity id is 0 to 512 bytes.");
}

char *
reconciler_id_arg(FunctionCallInfo fcinfo, int n, const char *arg)
{
	char	   *value = text_arg(fcinfo, n, arg);

	reconciler_id_check(value, arg);
	return value;
}

char *
holder_id_arg(FunctionCallInfo fcinfo, int n, const char *arg)
{
	char	   *value = text_arg(fcinfo, n, arg);

	holder_id_check(value, arg);
	return value;
}

char *
entity_id_arg(FunctionCallInfo fcinfo, int n, const char *arg)
{
	char	   *value = text_arg(fcinfo, n, arg);

	entity_id_check(value, arg);
	return value;
}

uint64
ident_hash(const char *kind_scope, const char *id)
{
	uint64		seed = hash_bytes_extended((const unsigned char *) kind_scope, strlen(kind_scope), 0);

	return hash_bytes_extended((const unsigned char *) id, strlen(id), seed) & ((UINT64CONST(1) << 44) - 1);
}
