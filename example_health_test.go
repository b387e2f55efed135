package worker_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/observe/health"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

// Liveness and readiness for an orchestrator.
func Example_health() {
	db, drop := database(`CREATE TABLE ledger (consumer TEXT, position BIGINT)`) // sql.Open("pgx", url) and migrations.Apply
	defer drop()
	started := make(chan struct{})
	w := worker.New(db, storepostgres.NewStore(storepostgres.DefaultStoreConfig()), []consumer.Consumer{Ledger{}},
		worker.WithObserver(observe.On(func(observe.WorkerStarted) { close(started) })))

	probes := http.NewServeMux()
	probes.Handle("/livez", health.Live(w))
	probes.Handle("/readyz", health.Ready(w, 5*time.Minute))
	server := httptest.NewServer(probes) // http.ListenAndServe(":8080", probes)
	defer server.Close()

	fmt.Print(get(server.URL + "/readyz"))
	ended := make(chan error)
	go func() { ended <- w.Start(context.Background()) }()
	<-started
	fmt.Print(get(server.URL + "/readyz"))
	fmt.Print(get(server.URL + "/livez"))
	w.Stop()
	check(<-ended)
	fmt.Print(get(server.URL + "/livez"))
	// Output:
	// 503 the worker is new: wait if it starts or drains, start the process again if it has stopped
	// 200 ok
	// 200 ok
	// 503 the worker has stopped: start the process again; what Start returned says why
}

// get asks a probe.
func get(url string) string {
	answer, err := http.Get(url)
	check(err)
	defer func() { check(answer.Body.Close()) }()
	body, err := io.ReadAll(answer.Body)
	check(err)
	return fmt.Sprint(answer.StatusCode, " ", string(body))
}
