package console_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/ops/console"
)

// BenchmarkPages measures each page of a large installation: 200 workers, 2,000 consumers,
// 1,000,000 rows of each audit, 20,000 dead letters, 100,000 jobs that wait and as many that
// have finished.
//
//	go test ./console -run '^$' -bench Pages -benchtime 12x
func BenchmarkPages(b *testing.B) {
	s := newSite(b, console.Options{Access: operators})
	for _, fill := range []string{
		`INSERT INTO events (global_position, aggregate_type, aggregate_id, aggregate_version, event_id, event_type, payload)
			SELECT i, 'Order', i::text, 1, gen_random_uuid(), 'Happened', '{"total": 7}' FROM generate_series(1, 200000) AS i`,
		`INSERT INTO consumer_checkpoints (consumer_name, last_position, revision) SELECT 'consumer_' || i, 200000 - i * i / 40, i FROM generate_series(1, 2000) AS i`,
		`INSERT INTO worker_nodes (worker_id, consumers, hostname, pid, build, status) SELECT gen_random_uuid(), (SELECT array_agg(consumer_name) FROM consumer_checkpoints), 'host-' || i, i, 'v1.2.3',
			jsonb_build_object('Safe', 200000, 'Leader', i = 1, 'Consumers', (SELECT jsonb_agg(jsonb_build_object('Name', 'consumer_' || (i - 1) * 10 + k, 'Position', 7, 'LastError', CASE WHEN k = 1 THEN 'no customer' END)) FROM generate_series(1, 10) AS k))
			FROM generate_series(1, 200) AS i`,
		`INSERT INTO consumer_assignments (consumer_name, worker_id) SELECT 'consumer_' || (n - 1) * 10 + k, worker_id FROM (SELECT worker_id, row_number() OVER () AS n FROM worker_nodes) AS w, generate_series(1, 10) AS k`,
		`INSERT INTO consumer_gap_skips (consumer_name, worker_id, gap_position, gap_end, missing, state, skip_to_position, highest_visible_position, closed_at)
			SELECT 'consumer_' || 1 + i % 2000, gen_random_uuid(), i, i, 1, CASE WHEN i % 1000 = 7 THEN 'open' ELSE 'void' END, i, i, CASE WHEN i % 1000 <> 7 THEN now() END FROM generate_series(1, 1000000) AS i`,
		`INSERT INTO consumer_operations (consumer_name, operation, detail, operator, reason)
			SELECT 'consumer_' || 1 + i % 1999, 'pause', '{"position": 7}', 'ann', 'order 4711' FROM generate_series(1, 1000000) AS i`,
		`INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts)
			SELECT 'consumer_' || 1 + i % 20, i, 'Order', i::text, gen_random_uuid(), 'Happened', 'no customer', 1 FROM generate_series(1, 20000) AS i`,
		`INSERT INTO jobs (kind, queue, args) SELECT 'mail', 'queue-' || i % 50, '{}' FROM generate_series(1, 100000) AS i`,
		`INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state)
			SELECT -i, 'mail', 'queue-' || i % 50, 5, now(), '{}', now(), 1, 0, 0, 5, CASE WHEN i % 1000 = 7 THEN 'failed' ELSE 'completed' END FROM generate_series(1, 100000) AS i`,
		`INSERT INTO jobs_operations (job_id, queue, operation, detail, operator, reason) SELECT 1 + i % 100000, 'queue-1', 'cancel', '{}', 'ann', 'r' FROM generate_series(1, 1000000) AS i`,
		`INSERT INTO jobs_schedules (name, hash, next_at) SELECT 'schedule-' || i, 'h', clock_timestamp() FROM generate_series(1, 200) AS i`,
		`VACUUM ANALYZE`,
	} {
		if _, err := s.DB.ExecContext(b.Context(), fill); err != nil { // a busy machine takes minutes for one
			b.Fatal(err)
		}
	}
	s.settle(b, 200_000)
	for _, page := range []string{"", "?find=999", "?state=late", "consumer?name=consumer_7", "letters", "letters?consumer=consumer_7", "letters?consumer=consumer_7&error=nothing", "letter?consumer=consumer_7&position=26",
		"workers", "blocked", "gaps", "gaps?consumer=consumer_7", "gaps?consumer=consumer_7&open=1", "event?position=7", "operations", "operations?consumer=consumer_7", "operations?consumer=consumer_2000",
		"queues", "jobworkers", "jobs", "jobs?queue=queue-7", "jobs?kind=nothing", "jobs?state=failed", "jobs?state=completed&queue=queue-7", "job?id=7", "schedules", "flows"} {
		b.Run(strings.ReplaceAll(page, "/", "_"), func(b *testing.B) {
			var took []time.Duration
			bytes := 0
			for b.Loop() {
				begin := time.Now()
				bytes = len(s.get(b, page).expect(b, http.StatusOK).body)
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[0].Microseconds())/1000, "ms-least")
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-median")
			b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "ms-most")
			b.ReportMetric(float64(bytes)/1024, "KiB")
		})
	}
}
