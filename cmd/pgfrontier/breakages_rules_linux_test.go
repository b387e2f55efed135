package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rule is the condition of an alert of observe/prometheus/rules, without how long it must last. holds
// returns what it is about, from what the processes expose now, and exposed before the breakage.
type rule struct {
	alert, expr string
	holds       func(now, before []exposed) []string
}

// where is the condition of values of a metric.
func where(metric string, is func(v float64) bool) func(now, before []exposed) []string {
	return func(now, _ []exposed) (about []string) {
		for _, e := range now {
			if e.Metric == metric && is(e.Value) {
				about = append(about, e.About)
			}
		}
		return about
	}
}

// unless leaves out what another condition is about.
func unless(one, other func(now, before []exposed) []string) func(now, before []exposed) []string {
	return func(now, before []exposed) []string {
		out := other(now, before)
		return slices.DeleteFunc(one(now, before), func(about string) bool { return slices.Contains(out, about) })
	}
}

// total is the condition of the sum of a metric, which is exposed at all.
func total(metric string, is func(v float64) bool) func(now, before []exposed) []string {
	return func(now, _ []exposed) []string {
		sum, there := 0.0, false
		for _, e := range now {
			if e.Metric == metric {
				sum, there = sum+e.Value, true
			}
		}
		if there && is(sum) {
			return []string{""}
		}
		return nil
	}
}

// gone holds if a metric was exposed before, and is not.
func gone(metric string) func(now, before []exposed) []string {
	return func(now, before []exposed) []string {
		of := func(e exposed) bool { return e.Metric == metric }
		if !slices.ContainsFunc(now, of) && slices.ContainsFunc(before, of) {
			return []string{""}
		}
		return nil
	}
}

// rises holds if a counter has risen.
func rises(metric, with string) func(now, before []exposed) []string {
	return func(now, before []exposed) (about []string) {
		for _, e := range now {
			if e.Metric != metric || !strings.Contains(e.About, with) {
				continue
			}
			i := slices.IndexFunc(before, func(b exposed) bool { return b.pod == e.pod && b.Metric == metric && b.About == e.About })
			if was := 0.0; i < 0 && e.Value > was || i >= 0 && e.Value > before[i].Value {
				about = append(about, strings.TrimSuffix(e.About, ","+with))
			}
		}
		return about
	}
}

func above(n float64) func(float64) bool { return func(v float64) bool { return v > n } }
func is(n float64) func(float64) bool    { return func(v float64) bool { return v == n } }
func isNot(n float64) func(float64) bool { return func(v float64) bool { return v != n } }

func either(all ...func(now, before []exposed) []string) func(now, before []exposed) []string {
	return func(now, before []exposed) (about []string) {
		for _, one := range all {
			about = append(about, one(now, before)...)
		}
		return about
	}
}

const (
	none  = `count by (namespace, job) (last_over_time(METRIC[1h])) unless on (namespace, job) count by (namespace, job) (METRIC)`
	jobUp = "pgfrontier_jobs_worker_up"
)

var rules = []rule{
	{"PgfrontierWorkerStopped", `pgfrontier_worker_up == 0`, where("pgfrontier_worker_up", is(0))},
	{"PgfrontierNoWorkers", strings.ReplaceAll(none, "METRIC", "pgfrontier_worker_up"), gone("pgfrontier_worker_up")},
	{"PgfrontierHeartbeat", `pgfrontier_worker_heartbeat_age_seconds > 60`, where("pgfrontier_worker_heartbeat_age_seconds", above(60))},
	{"PgfrontierFrontierDown", `pgfrontier_frontier_up == 0`, where("pgfrontier_frontier_up", is(0))},
	{"PgfrontierFrontierStill", `pgfrontier_frontier_still_seconds > 120`, where("pgfrontier_frontier_still_seconds", above(120))},
	{"PgfrontierBlocked", `pgfrontier_frontier_blocked_age_seconds > 60 or pgfrontier_frontier_blockers{state="passed"} > 0`,
		either(where("pgfrontier_frontier_blocked_age_seconds", above(60)), func(now, before []exposed) []string {
			return slices.DeleteFunc(where("pgfrontier_frontier_blockers", above(0))(now, before), func(about string) bool { return about != "passed" })
		})},
	{"PgfrontierConsumerLate", `pgfrontier_consumer_oldest_age_seconds > 300 unless on (namespace, job, instance, consumer, partition) pgfrontier_consumer_paused == 1`,
		unless(where("pgfrontier_consumer_oldest_age_seconds", above(300)), where("pgfrontier_consumer_paused", is(1)))},
	{"PgfrontierConsumerPaused", `pgfrontier_consumer_paused == 1`, where("pgfrontier_consumer_paused", is(1))},
	{"PgfrontierDeadLetters", `sum by (namespace, job, consumer) (increase(pgfrontier_letters_added_total[15m])) > 0`, rises("pgfrontier_letters_added_total", "")},
	{"PgfrontierRowsDiffer", `sum by (namespace, job, consumer) ( increase(pgfrontier_consumer_verified_total{outcome!="right"}[30m]) > 0 or (pgfrontier_consumer_verified_total{outcome!="right"} unless pgfrontier_consumer_verified_total{outcome!="right"} offset 30m) ) > 0`,
		either(rises("pgfrontier_consumer_verified_total", "differs"), rises("pgfrontier_consumer_verified_total", "failed"))},
	{"PgfrontierConsumersUnowned", `pgfrontier_consumers_unowned > 0`, where("pgfrontier_consumers_unowned", above(0))},
	{"PgfrontierLeaders", `sum by (namespace, job) (pgfrontier_worker_leader) != 1`, total("pgfrontier_worker_leader", isNot(1))},
	{"PgfrontierOpenRanges", `pgfrontier_open_ranges / on (namespace, job, instance) group_left () pgfrontier_open_ranges_limit > 0.8`, where("pgfrontier_open_ranges", above(8000))},
	{"PgfrontierJobsWorkerStopped", `pgfrontier_jobs_worker_up == 0`, where(jobUp, is(0))},
	{"PgfrontierJobsNoWorkers", strings.ReplaceAll(none, "METRIC", jobUp), gone(jobUp)},
	{"PgfrontierJobsHeartbeat", `pgfrontier_jobs_worker_heartbeat_age_seconds > 60`, where("pgfrontier_jobs_worker_heartbeat_age_seconds", above(60))},
	{"PgfrontierJobsQueueDown", `pgfrontier_jobs_queue_up == 0 or pgfrontier_jobs_read_up == 0`, either(where("pgfrontier_jobs_queue_up", is(0)), where("pgfrontier_jobs_read_up", is(0)))},
	{"PgfrontierJobsLate", `max by (namespace, job, queue) (pgfrontier_jobs_queue_oldest_age_seconds) > 300 unless on (namespace, job, queue) max by (namespace, job, queue) (pgfrontier_jobs_queue_paused) == 1`,
		unless(where("pgfrontier_jobs_queue_oldest_age_seconds", above(300)), where("pgfrontier_jobs_queue_paused", is(1)))},
	{"PgfrontierJobsQueuePaused", `max by (namespace, job, queue) (pgfrontier_jobs_queue_paused) == 1`, where("pgfrontier_jobs_queue_paused", is(1))},
	{"PgfrontierJobsLostSlots", `max by (namespace, job, queue) (pgfrontier_jobs_queue_slots_lost) > 0`, where("pgfrontier_jobs_queue_slots_lost", above(0))},
	{"PgfrontierJobsFailed", `sum by (namespace, job, queue, kind) ( increase(pgfrontier_jobs_done_total{outcome="failed"}[15m]) > 0 or (pgfrontier_jobs_done_total{outcome="failed"} unless pgfrontier_jobs_done_total{outcome="failed"} offset 15m) ) > 0`,
		rises("pgfrontier_jobs_done_total", "failed")},
	{"PgfrontierJobsUnknownKinds", `min by (namespace, job, queue) (pgfrontier_jobs_queue_unknown_kinds) > 0`, where("pgfrontier_jobs_queue_unknown_kinds", above(0))},
	{"PgfrontierJobsScheduleOverdue", `max by (namespace, job, schedule) (pgfrontier_jobs_schedule_overdue_seconds) > 300`, where("pgfrontier_jobs_schedule_overdue_seconds", above(300))},
	{"PgfrontierJobsSchedulePaused", `max by (namespace, job, schedule) (pgfrontier_jobs_schedule_paused) == 1`, where("pgfrontier_jobs_schedule_paused", is(1))},
	{"PgfrontierJobsFlowsUnadvanced", `max by (namespace, job) (pgfrontier_jobs_flows_unadvanced) == 1`, where("pgfrontier_jobs_flows_unadvanced", is(1))},
	{"PgfrontierJobsTableDown", `pgfrontier_jobs_table_up == 0`, where("pgfrontier_jobs_table_up", is(0))},
	{"PgfrontierJobsTableNoWorkers", strings.ReplaceAll(strings.ReplaceAll(none, "METRIC", "pgfrontier_jobs_table_up"), "job)", "job, table)"), gone("pgfrontier_jobs_table_up")},
	{"PgfrontierJobsTableRefused", `max by (namespace, job, table, what) (pgfrontier_jobs_table_refused) > 0`, where("pgfrontier_jobs_table_refused", above(0))},
	{"PgfrontierJobsTableLostSlots", `max by (namespace, job, table) (pgfrontier_jobs_table_slots{state="lost"}) > 0`, func(now, before []exposed) []string {
		return slices.DeleteFunc(where("pgfrontier_jobs_table_slots", above(0))(now, before), func(about string) bool { return !strings.HasSuffix(about, "lost") })
	}},
	{"PgfrontierJobsTableFailed", `sum by (namespace, job, table) ( increase(pgfrontier_jobs_table_done_total{outcome="failed"}[15m]) > 0 or (pgfrontier_jobs_table_done_total{outcome="failed"} unless pgfrontier_jobs_table_done_total{outcome="failed"} offset 15m) ) > 0`,
		rises("pgfrontier_jobs_table_done_total", "failed")},
	{"PgfrontierJobsLeaders", `sum by (namespace, job) (pgfrontier_jobs_worker_leader) != 1`, total("pgfrontier_jobs_worker_leader", isNot(1))},
}

// The conditions are those of the alerts.
func TestConditionsOfAlerts(t *testing.T) {
	text, err := os.ReadFile("../../observe/prometheus/rules/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	exprs := map[string]string{}
	for _, found := range regexp.MustCompile(`(?s)- alert: (\w+)\n.*?expr: (?:>-\n)?(.*?)\n +(?:for|labels):`).FindAllStringSubmatch(string(text), -1) {
		exprs[found[1]] = strings.Join(strings.Fields(found[2]), " ")
	}
	for _, r := range rules {
		if exprs[r.alert] != r.expr {
			t.Errorf("%s has the condition\n%s\nwant\n%s", r.alert, exprs[r.alert], r.expr)
		}
		delete(exprs, r.alert)
	}
	for alert := range exprs {
		t.Errorf("%s has no condition here", alert)
	}
}
