package consume

import (
	"context"
	"fmt"
)

// errNoNotifier reports that events are appended and no notification arrives.
func errNoNotifier(channel string) error {
	return fmt.Errorf("worker: events are appended but nothing notifies channel %q: make the stores that append with storepostgres.WithNotifyChannel(%q), or name their channel by WithNotifyChannel", channel, channel)
}

// listen handles the notifications of the store and of the other workers.
func (w *Worker) listen(ctx context.Context) error {
	return w.listener.Run(ctx, map[string]func(string){
		w.cfg.NotifyChannel: func(string) {
			w.listener.Notified()
			w.onEventsNotification()
		},
		w.channel:     func(string) { w.onChangeNotification() },
		w.waitChannel: w.arrivals.handle,
	})
}

// exec executes a quick statement on a connection of the pool.
func (w *Worker) exec(ctx context.Context, query string, args ...any) error {
	return w.bounded(ctx, w.limits.quick, func(ctx context.Context) error {
		_, err := w.db.ExecContext(ctx, query, args...)
		return err
	})
}
