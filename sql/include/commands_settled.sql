-- Brings all commands that are there to an end, so that none of them is claimed or swept in a test.
DO $$
BEGIN
    PERFORM reconcile.cancel_command(c.tenant_id, c.command_id, 'over') FROM reconcile.command c WHERE c.status = 'pending';
    PERFORM reconcile.complete_command(c.tenant_id, c.command_id, c.claim_token, 'succeeded')
       FROM reconcile.command c WHERE c.status IN ('dispatched', 'acknowledged');
END $$;
