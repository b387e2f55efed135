// Package prometheus serves what workers tell to Prometheus.
//
//	c := prometheus.New()
//	w := worker.New(db, events, consumers, c.Options()...)
//	c.Watch(w)
//	registry.MustRegister(c)
//
// docs/observing.md of the library has all metrics, and the folder rules beside this package has
// alerts and a dashboard. The package starts no goroutine.
package prometheus
