-- As a superuser, once: an action "charge", two tenants, and who may do what.

CREATE EXTENSION IF NOT EXISTS reconcile;

CREATE ROLE api_acme LOGIN;
CREATE ROLE api_globex LOGIN;
CREATE ROLE charger LOGIN;
CREATE ROLE clerk LOGIN;

-- Its effect is outside of the database: somebody claims it, acts, and reports.
SELECT reconcile.register_action('charge', '{invoice}', 'external');

-- The tenant comes from the role: each has one of its own for its requests.
SELECT reconcile.grant_command('api_' || tenant, tenant, permission)
  FROM unnest('{acme,globex}'::text[]) tenant, unnest('{charge,view}'::text[]) permission;
SELECT reconcile.grant_command('charger', tenant, 'dispatch', 'invoice') FROM unnest('{acme,globex}'::text[]) tenant;
SELECT reconcile.grant_command('clerk', tenant, permission)
  FROM unnest('{acme,globex}'::text[]) tenant, unnest('{resolve,view}'::text[]) permission;

-- Nothing sweeps by itself: a loop with one entity does, each second.
CREATE SCHEMA shop;
CREATE FUNCTION shop.sweep(entity_id text) RETURNS interval LANGUAGE sql AS
    $$SELECT CASE WHEN more THEN interval '0' END FROM reconcile.sweep_commands()$$;
SELECT reconcile.create_loop('sweeper', 'shop.sweep', default_requeue => '1 s');
SELECT reconcile.enqueue('sweeper', 'commands');
