-- sweep.sql: how far the sweeps over sessions and hosts have come

-- Whoever loses it begins anew: it needs no WAL, no dump and no subscription.
CREATE UNLOGGED TABLE reconcile.placement_cursor (
    sweep      text COLLATE "C" NOT NULL,
    shard      int NOT NULL,                 -- -1: of the sweep as a whole, whose turn is the shard in "next"
    next       int NOT NULL DEFAULT 0,
    asleep     boolean NOT NULL DEFAULT true, -- of the sweep as a whole: no look is coming
    bound      timestamptz,                  -- of the pass that is not at its end
    at         timestamptz NOT NULL DEFAULT '-infinity',
    position   text[] COLLATE "C" NOT NULL DEFAULT '{}',
    PRIMARY KEY (sweep, shard)
) WITH (fillfactor = 50);
COMMENT ON TABLE reconcile.placement_cursor IS
'How far each sweep came in each shard; the next one goes on there, with the bound that it began with.';
