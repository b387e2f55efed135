package main

import (
	"context"
	"database/sql"
	"time"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

type application struct {
	db        *sql.DB
	address   string
	logger    store.Logger
	shutdown  chan struct{}
	consumers []consumer.Consumer
	events    *storepostgres.Store // set by the setup
}

// setups are the ways in which such applications make their worker.
var setups = map[string]func(a *application) *worker.Worker{
	"defaults": func(a *application) *worker.Worker {
		a.events = storepostgres.NewStore(storepostgres.DefaultStoreConfig())
		return worker.New(a.db, a.events, a.consumers)
	},
	"some": func(a *application) *worker.Worker {
		a.events = storepostgres.NewStore(storepostgres.DefaultStoreConfig())
		w := worker.New(a.db, a.events, a.consumers,
			worker.WithBatchSize(50),
			worker.WithPollInterval(300*time.Millisecond),
		)
		go func() {
			<-a.shutdown
			w.Stop()
		}()
		return w
	},
	"poll": func(a *application) *worker.Worker {
		a.events = storepostgres.NewStore(storepostgres.DefaultStoreConfig())
		return worker.New(a.db, a.events, a.consumers,
			worker.WithDispatcherStrategy(worker.DispatcherStrategyPoll),
			worker.WithDispatcherInterval(100*time.Millisecond),
		)
	},
	"notify": func(a *application) *worker.Worker {
		a.events = storepostgres.NewStore(storepostgres.NewStoreConfig(storepostgres.WithNotifyChannel("orders")))
		return worker.New(a.db, a.events, a.consumers,
			worker.WithDispatcherStrategy(worker.DispatcherStrategyNotify),
			worker.WithNotifyConnectionString(a.address),
			worker.WithNotifyChannel("orders"),
		)
	},
	"everything": func(a *application) *worker.Worker {
		a.events = storepostgres.NewStore(storepostgres.NewStoreConfig(
			storepostgres.WithEventsTable("events"),
			storepostgres.WithAggregateHeadsTable("aggregate_heads"),
			storepostgres.WithLogger(a.logger),
			storepostgres.WithNotifyChannel("orders"),
		))
		return worker.New(a.db, a.events, a.consumers,
			worker.WithBatchSize(20),
			worker.WithBatchPause(50*time.Millisecond),
			worker.WithBatchTimeout(10*time.Second),
			worker.WithMaxConsecutiveFailures(3),
			worker.WithPollInterval(250*time.Millisecond),
			worker.WithMaxPollInterval(5*time.Second),
			worker.WithHeartbeatInterval(time.Second),
			worker.WithHeartbeatTimeout(10*time.Second),
			worker.WithRebalanceInterval(time.Second),
			worker.WithStaleGapThreshold(20*time.Second),
			worker.WithStaleGapHarborLag(4),
			worker.WithDispatcherStrategy(worker.DispatcherStrategyNotify),
			worker.WithDispatcherInterval(100*time.Millisecond),
			worker.WithNotifyConnectionString(a.address),
			worker.WithNotifyChannel("orders"),
			worker.WithLogger(a.logger),
			worker.WithLeaderStrategy(worker.LeaderStrategyLease),
			worker.WithWorkerNodesTable("infra.worker_nodes"),
			worker.WithConsumerAssignmentsTable("infra.consumer_assignments"),
			worker.WithConsumerCheckpointsTable("infra.consumer_checkpoints"),
			worker.WithConsumerGapSkipsTable("infra.consumer_gap_skips"),
			worker.WithLeaderElectionTable("infra.worker_leader_election"),
		)
	},
}

// migrate writes two files: the usual tables, and those of "everything".
func migrate() error {
	config := &migrations.Config{
		OutputFolder:             "./sql",
		OutputFilename:           "1_usual.sql",
		WorkerNodesTable:         "worker_nodes",
		ConsumerAssignmentsTable: "consumer_assignments",
		ConsumerCheckpointsTable: "consumer_checkpoints",
	}
	if err := migrations.GeneratePostgres(config); err != nil {
		return err
	}
	infra := migrations.DefaultConfig()
	infra.OutputFolder = "./sql"
	infra.OutputFilename = "2_infra.sql"
	infra.WorkerNodesTable = "infra.worker_nodes"
	infra.ConsumerAssignmentsTable = "infra.consumer_assignments"
	infra.ConsumerCheckpointsTable = "infra.consumer_checkpoints"
	infra.ConsumerGapSkipsTable = "infra.consumer_gap_skips"
	infra.LeaderElectionTable = "infra.worker_leader_election"
	return migrations.GeneratePostgres(&infra)
}

type quiet struct{}

func (quiet) Debug(_ context.Context, _ string, _ ...interface{}) {}
func (quiet) Info(_ context.Context, _ string, _ ...interface{})  {}
func (quiet) Error(_ context.Context, _ string, _ ...interface{}) {}

var _ store.Logger = store.NoOpLogger{}
