package rules_test

import (
	"slices"
	"strings"
	"testing"
)

const (
	one  = `{namespace="shop",job="w",instance="1"}`
	two  = `{namespace="shop",job="w",instance="2"}`
	of   = `{namespace="shop",job="w",instance="1",consumer="c",partition="0-7ff"}`
	in   = `{namespace="shop",job="w",instance="1",queue="q"}`
	part = `{namespace="shop",job="w",instance="2",consumer="c",partition="800-fff"}` // of c, too
	near = `{namespace="shop",job="w",instance="1",consumer="c",partition="800-bff"}` // likewise, of the same worker
	also = `{namespace="shop",job="w",instance="2",queue="q"}`
	tick = `{namespace="shop",job="w",instance="1",schedule="s"}`
	what = `{namespace="shop",job="w",instance="1",table="t",what="claim"}`
	lost = `{namespace="shop",job="w",instance="1",table="t",state="lost"}`
	fail = `{namespace="shop",job="w",instance="1",table="t",outcome="failed"}`
	vary = `{namespace="shop",job="w",instance="1",consumer="c",outcome="differs"}`
	runs = `{namespace="shop",job="w",instance="1",queue="q",kind="k",outcome="failed"}`
)

// healthy are the series of two workers that do well. Tests replace some of them.
func healthy() map[string]string {
	return map[string]string{
		"pgfrontier_worker_up" + one: "1x60", "pgfrontier_worker_up" + two: "1x60",
		"pgfrontier_frontier_up" + one: "1x60", "pgfrontier_frontier_up" + two: "1x60",
		"pgfrontier_worker_leader" + one: "1x60", "pgfrontier_worker_leader" + two: "0x60",
		"pgfrontier_worker_heartbeat_age_seconds" + one: "30x60", "pgfrontier_jobs_worker_heartbeat_age_seconds" + one: "30x60",
		"pgfrontier_consumers_unowned" + one:                                                  "0x60",
		"pgfrontier_frontier_still_seconds" + one:                                             "0x60",
		"pgfrontier_frontier_blocked_age_seconds" + one:                                       "30x60",
		`pgfrontier_frontier_blockers{namespace="shop",job="w",instance="1",state="passed"}`:  "0x60",
		`pgfrontier_frontier_blockers{namespace="shop",job="w",instance="1",state="holding"}`: "1x60",
		"pgfrontier_consumer_oldest_age_seconds" + of:                                         "299x60",
		"pgfrontier_consumer_paused" + of:                                                     "0x60",
		"pgfrontier_consumer_paused" + part:                                                   "0x60",
		"pgfrontier_consumer_paused" + near:                                                   "0x60",
		`pgfrontier_letters_added_total{namespace="shop",job="w",instance="1",consumer="c"}`:  "4x60",
		"pgfrontier_consumer_verified_total" + vary:                                           "0x60",
		"pgfrontier_open_ranges" + of:                                                         "80x60",
		"pgfrontier_open_ranges_limit" + one:                                                  "100x60",
		"pgfrontier_open_ranges_limit" + two:                                                  "100x60",
		"pgfrontier_jobs_worker_up" + one:                                                     "1x60",
		"pgfrontier_jobs_worker_leader" + one:                                                 "1x60",
		"pgfrontier_jobs_queue_up" + in:                                                       "1x60",
		"pgfrontier_jobs_read_up" + one:                                                       "1x60",
		"pgfrontier_jobs_queue_oldest_age_seconds" + in:                                       "299x60",
		"pgfrontier_jobs_queue_slots_lost" + in:                                               "0x60",
		"pgfrontier_jobs_queue_paused" + in:                                                   "0x60",
		"pgfrontier_jobs_queue_paused" + also:                                                 "0x60",
		"pgfrontier_jobs_done_total" + runs:                                                   "0x60",
		"pgfrontier_jobs_queue_unknown_kinds" + in:                                            "1x60",
		"pgfrontier_jobs_schedule_overdue_seconds" + tick:                                     "299x60",
		"pgfrontier_jobs_schedule_paused" + tick:                                              "0x60",
		"pgfrontier_jobs_flows_unadvanced" + one:                                              "0x60",
		"pgfrontier_jobs_queue_unknown_kinds" + also:                                          "0x60",
		"pgfrontier_jobs_table_up" + what:                                                     "1x60", "pgfrontier_jobs_table_refused" + what: "0x60",
		"pgfrontier_jobs_table_slots" + lost: "0x60", "pgfrontier_jobs_table_done_total" + fail: "0x60",
	}
}

// Each alert fires when what it is about has lasted, and no other does, beside another deployment
// of the same job that does well. Each fires in some case.
func TestAlerts(t *testing.T) {
	fired := map[string]bool{}
	for _, test := range []struct {
		name    string
		minutes int
		series  map[string]string
		want    string // that fire, by commas
	}{
		{"nothing is wrong", 60, nil, ""},
		{"a worker stopped a moment ago", 4, map[string]string{"pgfrontier_worker_up" + two: "0x60"}, ""},
		{"a worker has stopped", 5, map[string]string{"pgfrontier_worker_up" + two: "0x60"}, "WorkerStopped"},
		{"all workers are gone", 14, map[string]string{"pgfrontier_worker_up" + one: "1x5 _x60", "pgfrontier_worker_up" + two: "1x3 _x60"}, "NoWorkers"},
		{"one worker is gone", 40, map[string]string{"pgfrontier_worker_up" + two: "1x5 _x60"}, ""},
		{"workers were removed long ago", 66, map[string]string{"pgfrontier_worker_up" + one: "1x5 _x80", "pgfrontier_worker_up" + two: "1x5 _x80"}, ""},
		{"all workers of jobs are gone", 14, map[string]string{"pgfrontier_jobs_worker_up" + one: "1x5 _x60"}, "JobsNoWorkers"},
		{"a heartbeat is old", 3, map[string]string{"pgfrontier_worker_heartbeat_age_seconds" + one: "0+60x60"}, "Heartbeat"},
		{"a heartbeat was late", 3, map[string]string{"pgfrontier_worker_heartbeat_age_seconds" + one: "59 61 3x60"}, ""},
		{"a heartbeat of jobs is old", 3, map[string]string{"pgfrontier_jobs_worker_heartbeat_age_seconds" + one: "61x60"}, "JobsHeartbeat"},
		{"the log cannot be read", 2, map[string]string{"pgfrontier_frontier_up" + two: "1 0x60"}, "FrontierDown"},
		{"the log could not be read", 3, map[string]string{"pgfrontier_frontier_up" + two: "0 0 1x60"}, ""},
		{"safe stands still", 5, map[string]string{"pgfrontier_frontier_still_seconds" + one: "0+60x60"}, "FrontierStill"},
		{"safe stood still", 5, map[string]string{"pgfrontier_frontier_still_seconds" + one: "0 60 120 180 0x60"}, ""},
		{"a transaction holds back", 5, map[string]string{"pgfrontier_frontier_blocked_age_seconds" + one: "0+60x60"}, "Blocked"},
		{"a transaction was passed", 3, map[string]string{`pgfrontier_frontier_blockers{namespace="shop",job="w",instance="1",state="passed"}`: "1x60"}, "Blocked"},
		{"a consumer is late", 3, map[string]string{"pgfrontier_consumer_oldest_age_seconds" + of: "301x60"}, "ConsumerLate c 0-7ff"},
		{"a consumer catches up", 60, map[string]string{"pgfrontier_consumer_oldest_age_seconds" + of: "301 299x60"}, ""},
		{"a paused consumer is not late", 3, map[string]string{"pgfrontier_consumer_oldest_age_seconds" + of: "301x60", "pgfrontier_consumer_paused" + of: "1x60"}, "ConsumerPaused c 0-7ff"},
		{"another part is paused", 3, map[string]string{"pgfrontier_consumer_oldest_age_seconds" + of: "301x60", "pgfrontier_consumer_paused" + part: "1x60"}, "ConsumerLate c 0-7ff, ConsumerPaused c 800-fff"},
		{"a part beside it is paused", 3, map[string]string{"pgfrontier_consumer_oldest_age_seconds" + of: "301x60", "pgfrontier_consumer_paused" + near: "1x60"}, "ConsumerLate c 0-7ff, ConsumerPaused c 800-bff"},
		{"a new letter", 2, map[string]string{`pgfrontier_letters_added_total{namespace="shop",job="w",instance="1",consumer="c"}`: "0 0 1x60"}, "DeadLetters c"},
		{"an old letter", 40, map[string]string{`pgfrontier_letters_added_total{namespace="shop",job="w",instance="1",consumer="c"}`: "0 0 1x60"}, ""},
		{"rows differ again", 22, map[string]string{"pgfrontier_consumer_verified_total" + vary: "7x20 8x60"}, "RowsDiffer c"},
		{"rows differ first", 2, map[string]string{"pgfrontier_consumer_verified_total" + vary: "_ _ 1x60"}, "RowsDiffer c"},
		{"rows differed first long ago", 50, map[string]string{"pgfrontier_consumer_verified_total" + vary: "_ _ 1x60"}, ""},
		{"an unowned consumer", 2, map[string]string{"pgfrontier_consumers_unowned" + one: "1x60"}, "ConsumersUnowned"},
		{"nobody leads", 5, map[string]string{"pgfrontier_worker_leader" + one: "0x60"}, "Leaders"},
		{"two lead", 5, map[string]string{"pgfrontier_worker_leader" + two: "1x60"}, "Leaders"},
		{"another leads", 60, map[string]string{"pgfrontier_worker_leader" + one: "1 1 0x60", "pgfrontier_worker_leader" + two: "0 0 0 1x60"}, ""},
		{"many ranges", 1, map[string]string{"pgfrontier_open_ranges" + of: "81x60"}, "OpenRanges c 0-7ff"},
		{"a worker of jobs has stopped", 5, map[string]string{"pgfrontier_jobs_worker_up" + one: "0x60"}, "JobsWorkerStopped"},
		{"jobs cannot be claimed", 2, map[string]string{"pgfrontier_jobs_queue_up" + in: "0x60"}, "JobsQueueDown q"},
		{"queues cannot be read", 2, map[string]string{"pgfrontier_jobs_read_up" + one: "0x60"}, "JobsQueueDown"},
		{"jobs are late", 3, map[string]string{"pgfrontier_jobs_queue_oldest_age_seconds" + in: "301x60"}, "JobsLate q"},
		{"paused jobs are not late", 3, map[string]string{"pgfrontier_jobs_queue_oldest_age_seconds" + in: "301x60", "pgfrontier_jobs_queue_paused" + also: "1x60"}, ""},
		{"a queue is paused", 60, map[string]string{"pgfrontier_jobs_queue_paused" + also: "1x61"}, "JobsQueuePaused q"},
		{"slots are lost", 5, map[string]string{"pgfrontier_jobs_queue_slots_lost" + in: "1x60"}, "JobsLostSlots q"},
		{"slots were lost", 60, map[string]string{"pgfrontier_jobs_queue_slots_lost" + in: "1x4 0x60"}, ""},
		{"a job fails again", 22, map[string]string{"pgfrontier_jobs_done_total" + runs: "7x20 8x60"}, "JobsFailed q k"},
		{"a job fails first", 2, map[string]string{"pgfrontier_jobs_done_total" + runs: "_ _ 1x60"}, "JobsFailed q k"},
		{"a job failed first a while ago", 10, map[string]string{"pgfrontier_jobs_done_total" + runs: "_ _ 1x60"}, "JobsFailed q k"},
		{"a job failed first long ago", 40, map[string]string{"pgfrontier_jobs_done_total" + runs: "_ _ 1x60"}, ""},
		{"kinds without handlers", 10, map[string]string{"pgfrontier_jobs_queue_unknown_kinds" + also: "2x60"}, "JobsUnknownKinds q"},
		{"a schedule is overdue", 2, map[string]string{"pgfrontier_jobs_schedule_overdue_seconds" + tick: "301x60"}, "JobsScheduleOverdue s"},
		{"a schedule was overdue", 2, map[string]string{"pgfrontier_jobs_schedule_overdue_seconds" + tick: "301 0x60"}, ""},
		{"a schedule is paused", 60, map[string]string{"pgfrontier_jobs_schedule_paused" + tick: "1x61"}, "JobsSchedulePaused s"},
		{"nobody advances flows", 1, map[string]string{"pgfrontier_jobs_flows_unadvanced" + one: "1x60"}, "JobsFlowsUnadvanced"},
		{"rows cannot be claimed", 2, map[string]string{"pgfrontier_jobs_table_up" + what: "0x60"}, "JobsTableDown t claim"},
		{"rows could not be claimed", 3, map[string]string{"pgfrontier_jobs_table_up" + what: "0 0 1x60"}, ""},
		{"all workers of a table are gone", 14, map[string]string{"pgfrontier_jobs_table_up" + what: "1x5 _x60"}, "JobsTableNoWorkers t"},
		{"rows are refused", 5, map[string]string{"pgfrontier_jobs_table_refused" + what: "2x60"}, "JobsTableRefused t claim"},
		{"rows were refused", 60, map[string]string{"pgfrontier_jobs_table_refused" + what: "2x4 0x60"}, ""},
		{"slots of a table are lost", 5, map[string]string{"pgfrontier_jobs_table_slots" + lost: "1x60"}, "JobsTableLostSlots t"},
		{"a row fails again", 22, map[string]string{"pgfrontier_jobs_table_done_total" + fail: "7x20 8x60"}, "JobsTableFailed t"},
		{"a row fails first", 2, map[string]string{"pgfrontier_jobs_table_done_total" + fail: "_ _ 1x60"}, "JobsTableFailed t"},
		{"a row failed first long ago", 40, map[string]string{"pgfrontier_jobs_table_done_total" + fail: "_ _ 1x60"}, ""},
		{"nobody leads jobs", 5, map[string]string{"pgfrontier_jobs_worker_leader" + one: "0x60"}, "JobsLeaders"},
	} {
		t.Run(test.name, func(t *testing.T) {
			all := healthy()
			for name, values := range test.series {
				if _, is := all[name]; !is {
					t.Fatalf("no healthy worker has %s", name)
				}
				all[name] = values
			}
			var series []string
			for name, values := range healthy() {
				series = append(series, strings.Replace(name, "shop", "elsewhere", 1)+" "+values)
			}
			for name, values := range all {
				series = append(series, name+" "+values)
			}
			got := alerts(t, test.minutes, series...)
			if strings.Join(got, ", ") != test.want {
				t.Errorf("after %d minutes %q fire, want %q", test.minutes, got, test.want)
			}
			for _, a := range got {
				name, _, _ := strings.Cut(a, " ")
				fired[name] = true
			}
		})
	}
	for _, r := range load(t) {
		if !fired[strings.TrimPrefix(r.Alert, "Pgfrontier")] {
			t.Errorf("no case makes %s fire", r.Alert)
		}
		if r.Annotations["summary"] == "" || r.Annotations["remedy"] == "" || !slices.Contains([]string{"warning", "critical"}, r.Labels["severity"]) {
			t.Errorf("%s has no summary, remedy or severity: %v, %v", r.Alert, r.Annotations, r.Labels)
		}
	}
}
