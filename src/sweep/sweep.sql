-- sweep.sql: how far the sweeps over sessions and hosts have come

-- Whoever loses it begins anew: it needs no WAL, no dump and no subscription.
CREATE UNLOGGED TABLE reconcile.placement_cursor (
    sweep      text COLLATE "C" NOT NULL,
    shard      int NOT NULL,                 -- -1: of the sweep as a whole
    -- of a pass that is not at its end: what it began with, and where it is; of the round of
    -- the loop: the earliest of its passes
    bound      timestamptz,
    at         timestamptz NOT NULL DEFAULT '-infinity',
    position   text[] COLLATE "C" NOT NULL DEFAULT '{}',
    -- of the sweep as a whole
    turn       bigint,                       -- the last that did not fail
    careful    int NOT NULL DEFAULT 0,       -- turns to come of calls that take one page only, as one has failed
    ended      int[] NOT NULL DEFAULT '{}',  -- shards whose passes are over in this round of the loop
    took_us    bigint,                       -- microseconds, by the runs of the round; NULL: it is over
    again_at   timestamptz NOT NULL DEFAULT 'infinity', -- when a row that the round met is worth another look
    wake_at    timestamptz NOT NULL DEFAULT 'infinity', -- when the loop looks again by itself
    PRIMARY KEY (sweep, shard)
) WITH (fillfactor = 50);
COMMENT ON TABLE reconcile.placement_cursor IS
'How far each sweep came in each shard; the next one goes on there, with the bound that it began with.';

-- A turn that was taken is over, also where its transaction is rolled back.
CREATE SEQUENCE reconcile.sweep_turn_pending MINVALUE 0 START 0 CYCLE;
COMMENT ON SEQUENCE reconcile.sweep_turn_pending IS
'Turns of sweep_pending; their remainder by the number of shards is the shard.';
CREATE SEQUENCE reconcile.sweep_turn_deadlines MINVALUE 0 START 0 CYCLE;
COMMENT ON SEQUENCE reconcile.sweep_turn_deadlines IS
'Turns of sweep_deadlines; their remainder by the number of shards is the shard.';
