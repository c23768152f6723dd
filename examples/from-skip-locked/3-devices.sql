-- Producers who only change the device: the change is the trigger. A transaction of
-- its own, as it locks the devices, which producers lock before their queue.
SELECT reconcile.watch('device', 'app.device', 'device_id', columns => '{desired}');
