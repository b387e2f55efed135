package consume

import (
	"database/sql"

	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

type option = func(*Config)

// newWorker makes a worker with settings other than the defaults.
func newWorker(db *sql.DB, log store.Log, consumers []consumer.Consumer, options ...option) *Worker {
	c := DefaultConfig()
	for _, o := range options {
		o(&c)
	}
	return New(db, log, consumers, c)
}
