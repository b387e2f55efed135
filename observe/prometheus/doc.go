// Package prometheus exports the metrics of workers to Prometheus.
//
//	c := prometheus.New()
//	w := worker.New(db, events, consumers, c.Options()...)
//	c.Watch(w)
//	registry.MustRegister(c)
//
// docs/observing.md of the library has all metrics, and the folder rules has alerts and a
// dashboard. The package starts no goroutine.
package prometheus
