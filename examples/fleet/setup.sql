-- As a superuser, in the database of the fleet: the extension, and what the
-- ordinary role fleet_owner may do with it.

CREATE ROLE fleet_owner LOGIN;
CREATE EXTENSION reconcile;

-- to define loops of the name "fleet", and so to own one
SELECT reconcile.grant_access('fleet_owner', 'define', scope => 'fleet');
-- to hold a lease of his own, "rollout", and to write under its epoch
SELECT reconcile.grant_access('fleet_owner', 'lease', scope => 'rollout');
SELECT reconcile.grant_access('fleet_owner', 'fence', scope => 'rollout');
SELECT reconcile.grant_access('fleet_owner', 'observe', scope => 'rollout');

CREATE SCHEMA fleet AUTHORIZATION fleet_owner;
