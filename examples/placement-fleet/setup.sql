-- As a superuser: sessions, their hosts, and who may do what. For the fleet here
-- and for one agent alone (../host-agent-node, ../host-agent-psql).

CREATE EXTENSION IF NOT EXISTS reconcile;

-- A role for each host: it says which host a program is. It sees and touches the
-- sessions that were given to this host, and nothing else. The factory makes
-- sessions and sends them commands.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY '{factory,host_1,host_2,host_3,host_4}'::text[] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I LOGIN', name);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;               -- of another database of this server
        END;
    END LOOP;
END $$;
SELECT reconcile.register_host(role, role) FROM unnest('{host_1,host_2,host_3,host_4}'::text[]) role;
SELECT reconcile.grant_access('factory', 'place');

-- Makes the loops that place sessions and look after hosts. A host that says
-- nothing for session_ttl has its sessions no more; who waits for less is to be
-- sure that his hosts can say something more often.
SELECT reconcile.set_placement('{"control_shards": 4, "session_ttl": "6 s", "offer_ttl": "3 s", "interval": "1 s"}');
