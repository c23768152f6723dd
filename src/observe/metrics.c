/*
 * metrics.c
 *		metrics() and metrics_text(): what a monitoring system keeps over time.
 *
 * A table of families, each with the function that gives its samples; both
 * functions go through it, one makes rows and the other the Prometheus text
 * format.  A label is a reconciler id, a state or a result: never an entity, a
 * tenant or an error, of which there may be any number.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/shortest_dec.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/json.h"

#include "core/access.h"
#include "core/duration.h"
#include "engine/command_stats.h"
#include "journal/lifecycle.h"
#include "loop/mark.h"
#include "observe/sight.h"
#include "placement/placement_sight.h"

typedef struct Label
{
	const char *name;
	const char *value;
} Label;

#define LABELS_MAX	2

typedef struct Scrape Scrape;

typedef struct Family
{
	const char *name;
	const char *type;
	const char *help;
	void		(*samples) (Scrape *scrape);
} Family;

struct Scrape
{
	Seen	   *seen;
	int			nseen;
	EngineFacts facts;
	TimestampTz now;
	const Family *family;		/* in progress */
	/* out */
	ReturnSetInfo *rows;		/* or */
	StringInfo	text;
};

/* ----------------------------------------------------------------
 * Output
 * ----------------------------------------------------------------
 */

/* Whatever the caller's extra_float_digits: a rounded bound would be another time series. */
static char *
float_text(double value)
{
	return double_to_shortest_decimal(value);
}

static void
put_row(Scrape *scrape, const char *suffix, const Label *labels, int nlabels, double value)
{
	StringInfoData json;
	Datum		values[5];
	bool		nulls[5] = {false};

	initStringInfo(&json);
	appendStringInfoChar(&json, '{');
	for (int i = 0; i < nlabels; i++)
	{
		if (i > 0)
			appendStringInfoChar(&json, ',');
		escape_json(&json, labels[i].name);
		appendStringInfoChar(&json, ':');
		escape_json(&json, labels[i].value);
	}
	appendStringInfoChar(&json, '}');
	values[0] = CStringGetTextDatum(psprintf("%s%s", scrape->family->name, suffix));
	values[1] = CStringGetTextDatum(scrape->family->type);
	values[2] = CStringGetTextDatum(scrape->family->help);
	values[3] = DirectFunctionCall1(jsonb_in, CStringGetDatum(json.data));
	values[4] = Float8GetDatum(value);
	tuplestore_putvalues(scrape->rows->setResult, scrape->rows->setDesc, values, nulls);
}

static void
append_label_value(StringInfo text, const char *value)
{
	for (; *value != '\0'; value++)
	{
		if (*value == '\n')
			appendStringInfoString(text, "\\n");
		else
		{
			if (*value == '\\' || *value == '"')
				appendStringInfoChar(text, '\\');
			appendStringInfoChar(text, *value);
		}
	}
}

static void
put_line(Scrape *scrape, const char *suffix, const Label *labels, int nlabels, double value)
{
	StringInfo	text = scrape->text;

	appendStringInfo(text, "%s%s", scrape->family->name, suffix);
	for (int i = 0; i < nlabels; i++)
	{
		appendStringInfo(text, "%s%s=\"", i == 0 ? "{" : ",", labels[i].name);
		append_label_value(text, labels[i].value);
		appendStringInfoChar(text, '"');
	}
	appendStringInfo(text, "%s %s\n", nlabels > 0 ? "}" : "", float_text(value));
}

static void
put(Scrape *scrape, const char *suffix, const Label *labels, int nlabels, double value)
{
	if (scrape->rows != NULL)
		put_row(scrape, suffix, labels, nlabels, value);
	else
		put_line(scrape, suffix, labels, nlabels, value);
}

/* A sample of the server or the database. */
static void
put_value(Scrape *scrape, double value)
{
	put(scrape, "", NULL, 0, value);
}

/* One of a reconciler id, with another label or (NULL) without. */
static void
put_of(Scrape *scrape, const Seen *seen, const char *label, const char *label_value, double value)
{
	Label		labels[LABELS_MAX] = {{"reconciler", seen->reconciler_id}, {label, label_value}};

	put(scrape, "", labels, label != NULL ? 2 : 1, value);
}

/* ----------------------------------------------------------------
 * Samples of loops and leases
 * ----------------------------------------------------------------
 */

#define for_each_seen(scrape, s) \
	for (const Seen *s = (scrape)->seen; s < (scrape)->seen + (scrape)->nseen; s++)

static void
samples_total(Scrape *scrape)
{
	static const char *const names[STATS_RESULTS] = {
		[RESULT_SUCCESS] = "success",
		[RESULT_TRANSIENT] = "transient",
		[RESULT_PERMANENT] = "permanent",
		[STATS_SKIPPED] = "skipped"
	};

	for_each_seen(scrape, seen)
	{
		for (int i = 0; i < STATS_RESULTS && seen->is_loop; i++)
			put_of(scrape, seen, "result", names[i], seen->stats.results[i]);
	}
}

static void
put_times(Scrape *scrape, const Seen *seen, const TimesSample *times)
{
	Label		labels[LABELS_MAX] = {{"reconciler", seen->reconciler_id}};
	uint64		below = 0;

	labels[1].name = "le";
	for (int i = 0; i < STATS_BUCKETS; i++)
	{
		below += times->buckets[i];
		labels[1].value = i < STATS_BUCKETS - 1 ? float_text(stats_bounds[i]) : "+Inf";
		put(scrape, "_bucket", labels, 2, below);
	}
	put(scrape, "_sum", labels, 1, times->sum);
	put(scrape, "_count", labels, 1, times->count);
}

static void
samples_duration(Scrape *scrape)
{
	for_each_seen(scrape, seen)
	{
		if (seen->is_loop)
			put_times(scrape, seen, &seen->stats.run);
	}
}

static void
samples_queue(Scrape *scrape)
{
	for_each_seen(scrape, seen)
	{
		if (seen->is_loop)
			put_times(scrape, seen, &seen->stats.queue);
	}
}

static void
samples_in_flight(Scrape *scrape)
{
	for_each_seen(scrape, seen)
	{
		if (seen->is_loop)
			put_of(scrape, seen, NULL, NULL, seen->stats.in_flight + (seen->current ? seen->stats.gauges.claimed : 0));
	}
}

static void
samples_work(Scrape *scrape)
{
	for_each_seen(scrape, seen)
	{
		if (seen->is_loop && seen->current)
		{
			put_of(scrape, seen, "state", "ready", seen->stats.gauges.ready);
			put_of(scrape, seen, "state", "running", seen->stats.gauges.running);
			put_of(scrape, seen, "state", "waiting", seen->stats.gauges.waiting);
			put_of(scrape, seen, "state", "retrying", seen->stats.gauges.retrying);
		}
		if (seen->is_loop)
			put_of(scrape, seen, "state", "dead", sight_dead(seen));
	}
}

static void
samples_oldest_due(Scrape *scrape)
{
	for_each_seen(scrape, seen)
	{
		TimestampTz since = seen->stats.gauges.oldest_due_at;

		if (seen->is_loop && seen->current)
			put_of(scrape, seen, NULL, NULL,
				   since == 0 ? 0 : Max(scrape->now - since, 0) / 1000000.0);
	}
}

static void
samples_leader(Scrape *scrape)
{
	for_each_seen(scrape, seen)
		put_of(scrape, seen, NULL, NULL, sight_leads(seen, scrape->now) ? 1 : 0);
}

static void
samples_paused(Scrape *scrape)
{
	for_each_seen(scrape, seen)
	{
		if (seen->is_loop)
			put_of(scrape, seen, NULL, NULL, seen->paused || !seen->enabled ? 1 : 0);
	}
}

static void
samples_epoch(Scrape *scrape)
{
	for_each_seen(scrape, seen)
	{
		if (seen->has_term)
			put_of(scrape, seen, NULL, NULL, seen->epoch);
	}
}

static void
samples_fence_rejections(Scrape *scrape)
{
	for_each_seen(scrape, seen)
		put_of(scrape, seen, NULL, NULL, seen->stats.tallies[TALLY_FENCE_REJECTED]);
}

static void
samples_self_suppressed(Scrape *scrape)
{
	for_each_seen(scrape, seen)
	{
		if (seen->is_loop)
			put_of(scrape, seen, NULL, NULL, seen->stats.tallies[TALLY_SELF_SUPPRESSED]);
	}
}

static void
samples_bad_values(Scrape *scrape)
{
	for_each_seen(scrape, seen)
	{
		if (seen->is_loop)
			put_of(scrape, seen, NULL, NULL, seen->stats.tallies[TALLY_BAD_VALUE]);
	}
}

/* ----------------------------------------------------------------
 * Samples of the database and the server
 * ----------------------------------------------------------------
 */

/*
 * Of an action that nobody gives there is no sample, there are so many.  Of another
 * there are all: a counter that comes up with 1 has not risen, for Prometheus.  They
 * are of all tenants together: for who may observe all.
 */
static void
samples_commands(Scrape *scrape)
{
	if (!access_allowed(CAP_OBSERVE, ""))
		return;
	for (int i = 0; i < COUNT_ACTIONS && engine_present(); i++)
	{
		uint64		n[COUNT_OUTCOMES];
		bool		given = false;

		for (int j = 0; j < COUNT_OUTCOMES; j++)
		{
			n[j] = command_stats_read(i, j);
			given |= n[j] > 0;
		}
		for (int j = 0; j < COUNT_OUTCOMES && given; j++)
		{
			Label		labels[LABELS_MAX] = {{"action", count_actions[i]}, {"outcome", count_outcomes[j]}};

			put(scrape, "", labels, 2, n[j]);
		}
	}
}

static void
samples_commands_overdue(Scrape *scrape)
{
	if (access_allowed(CAP_OBSERVE, ""))
		put_value(scrape, command_overdue(clock_add_ms(scrape->now, -COMMAND_OVERDUE_S * INT64CONST(1000)), COMMANDS_MAX));
}

static void
samples_sessions_waiting(Scrape *scrape)
{
	if (access_allowed(CAP_OBSERVE, ""))
		put_value(scrape, placement_waiting(scrape->now, PLACEMENT_MAX));
}

static void
samples_offers_overdue(Scrape *scrape)
{
	if (access_allowed(CAP_OBSERVE, ""))
		put_value(scrape, placement_offers_overdue(clock_add_ms(scrape->now, -PLACEMENT_OVERDUE_S * INT64CONST(1000)), PLACEMENT_MAX));
}

static void
samples_workers(Scrape *scrape)
{
	put_value(scrape, scrape->facts.processes);
}

static void
samples_restarts(Scrape *scrape)
{
	put_value(scrape, scrape->facts.restarts);
}

static void
samples_slots(Scrape *scrape)
{
	const EngineFacts *facts = &scrape->facts;
	const struct
	{
		Label		label;
		int			n;
	}			states[] = {
		{{"state", "busy"}, facts->slots_busy},
		{{"state", "idle"}, facts->slots_idle},
		{{"state", "free"}, facts->slots - facts->slots_busy - facts->slots_idle}
	};

	for (int i = 0; i < lengthof(states); i++)
		put(scrape, "", &states[i].label, 1, states[i].n);
}

static void
samples_dispatcher(Scrape *scrape)
{
	put_value(scrape, scrape->facts.dispatching ? 1 : 0);
}

static void
samples_messages(Scrape *scrape)
{
	put_value(scrape, scrape->facts.messages);
}

static void
samples_overflows(Scrape *scrape)
{
	put_value(scrape, scrape->facts.overflows);
}

static void
samples_segments(Scrape *scrape)
{
	double		blocks = 0;

	for (int i = 0; i < MARK_SEGMENTS; i++)
		blocks += mark_segment_blocks(i);
	put_value(scrape, blocks * BLCKSZ);
}

static void
samples_rotation(Scrape *scrape)
{
	TimestampTz since = scrape->facts.rotating_since;

	put_value(scrape, since == 0 ? 0 : Max(scrape->now - since, 0) / 1000000.0);
}

static void
samples_uncounted(Scrape *scrape)
{
	put_value(scrape, scrape->facts.uncounted);
}

static const Family families[] = {
	{"reconcile_total", "counter",
		"Runs of a loop by result; skipped: triggers that came while their entity ran, and caused one more run.", samples_total},
	{"reconcile_duration_seconds", "histogram", "Time that runs took.", samples_duration},
	{"reconcile_queue_seconds", "histogram", "Time from when an entity came due to when its run began.", samples_queue},
	{"reconcile_in_flight", "gauge", "Runs in progress, in workers and in sessions, and claims.", samples_in_flight},
	{"reconcile_work", "gauge", "Entities by state.", samples_work},
	{"reconcile_oldest_due_age_seconds", "gauge",
		"Time for which the entity that is next has been due; 0 when none is.", samples_oldest_due},
	{"reconcile_leader", "gauge",
		"1 while somebody holds the lease, or, without a lease, while the loop may run.", samples_leader},
	{"reconcile_paused", "gauge", "1 while the loop is paused or disabled.", samples_paused},
	{"reconcile_lease_epoch", "gauge", "Epoch of the last term of the lease.", samples_epoch},
	{"reconcile_fence_rejections_total", "counter", "Writes at a stale epoch that were refused.", samples_fence_rejections},
	{"reconcile_self_suppressed_total", "counter",
		"Statements of a run that changed rows of its own entity in a watched table, and did not trigger it.", samples_self_suppressed},
	{"reconcile_bad_values_total", "counter",
		"Statements on a watched table with a value that is no entity id.", samples_bad_values},
	{"reconcile_commands_total", "counter",
		"Commands by action (other: of the application) and by what happened to them, once it has committed.", samples_commands},
	{"reconcile_commands_overdue", "gauge",
		"Commands whose time has been over for a minute, and that no sweep has settled; 1001: more.", samples_commands_overdue},
	{"reconcile_sessions_waiting", "gauge",
		"Sessions with an open command for which no host has room; 1001: more.", samples_sessions_waiting},
	{"reconcile_offers_overdue", "gauge",
		"Offers whose time has been over for a minute, and that nobody has ended; 1001: more.", samples_offers_overdue},
	{"reconcile_workers_up", "gauge", "Processes of the extension in the server.", samples_workers},
	{"reconcile_worker_restarts_total", "counter",
		"Processes of the extension in the server that ended without being asked to.", samples_restarts},
	{"reconcile_executor_slots", "gauge", "Executor slots of the server by state.", samples_slots},
	{"reconcile_dispatcher_up", "gauge", "1 while this database has its dispatcher.", samples_dispatcher},
	{"reconcile_ring_messages", "gauge", "Messages from commits that this database's dispatcher has not taken in.", samples_messages},
	{"reconcile_ring_overflows_total", "counter",
		"Messages that found no place, so that the marks were read from the tables.", samples_overflows},
	{"reconcile_mark_bytes", "gauge", "Size of the mark segments of this database.", samples_segments},
	{"reconcile_rotation_delay_seconds", "gauge",
		"Time for which a mark segment has waited to be emptied; 0 when none does.", samples_rotation},
	{"reconcile_uncounted_total", "counter",
		"Events in the server that were not counted, as it has more reconciler ids than slots for their counters.", samples_uncounted}
};

/* ----------------------------------------------------------------
 * SQL
 * ----------------------------------------------------------------
 */

static void
scrape_all(Scrape *scrape)
{
	scrape->nseen = sight_read(&scrape->seen);
	(void) engine_facts(&scrape->facts);
	scrape->now = clock_now();
	for (int i = 0; i < lengthof(families); i++)
	{
		scrape->family = &families[i];
		if (scrape->text != NULL)
			appendStringInfo(scrape->text, "# HELP %s %s\n# TYPE %s %s\n", families[i].name, families[i].help,
							 families[i].name, families[i].type);
		families[i].samples(scrape);
	}
}

PG_FUNCTION_INFO_V1(reconcile_metrics);
Datum
reconcile_metrics(PG_FUNCTION_ARGS)
{
	Scrape		scrape = {0};

	InitMaterializedSRF(fcinfo, 0);
	scrape.rows = (ReturnSetInfo *) fcinfo->resultinfo;
	scrape_all(&scrape);
	return (Datum) 0;
}

PG_FUNCTION_INFO_V1(reconcile_metrics_text);
Datum
reconcile_metrics_text(PG_FUNCTION_ARGS)
{
	Scrape		scrape = {0};
	StringInfoData text;

	initStringInfo(&text);
	scrape.text = &text;
	scrape_all(&scrape);
	PG_RETURN_TEXT_P(cstring_to_text_with_len(text.data, text.len));
}
