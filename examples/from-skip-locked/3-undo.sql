SELECT reconcile.unwatch('device', 'app.device');
