package sim

import (
	"bytes"
	"context"
	"maps"
	"regexp"
	"slices"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
)

// jobFaultRow is a fault of a run of jobs: what it is, when it is on, and how it is
// injected. A new one is a row in jobs_fault_*.go.
type jobFaultRow struct {
	fault.Row
	also []history.Fault // what else it is counted as

	seldom bool           // few seeds draw it: it takes long
	outage bool           // the server goes away, and comes back
	async  bool           // somebody does not wait for commits to be safe
	needs  []*requirement // of the server

	// How it is injected: into a worker as it starts or at a point, by an operator now and
	// then, in what a handler is told to do, or by an enqueuer in place of a plain commit. A
	// row without any is a setting, which is read by name.
	build    build
	worker   []jobInjection
	operator func(o *jobOperator, ctx, intake context.Context) error
	act      string
	end      jobEnd
}

// jobInjection is a way in which a fault is injected into a worker, and when.
type jobInjection struct {
	at     jobPoint
	inject func(s *jobSlot, ctx, intake context.Context, at jobPoint) error
}

// jobPoint is a moment in the life of a worker of jobs: a handler begins, or
// something is sent, or answered.
type jobPoint struct {
	where    string
	sends    func([]byte) bool // nil: a handler begins
	answered bool
}

var (
	inRun        = jobPoint{where: history.InRun}
	beforeClaim  = jobPoint{history.BeforeClaim, sendsClaim, false}
	afterClaim   = jobPoint{history.AfterClaim, sendsClaim, true}
	beforeEnd    = jobPoint{history.BeforeEnd, sendsEnd, false}
	afterEnd     = jobPoint{history.AfterEnd, sendsEnd, true}
	beforeTick   = jobPoint{history.BeforeTick, sendsTick, false}
	afterTick    = jobPoint{history.AfterTick, sendsTick, true}
	beforeTell   = jobPoint{history.BeforeTell, sendsTell, false}
	afterTell    = jobPoint{history.AfterTell, sendsTell, true}
	beforeJobsTx = jobPoint{history.BeforeCommit, commits, false}
	afterJobsTx  = jobPoint{history.AfterCommit, commits, true}
)

// found says where a fault was injected.
func (p jobPoint) found(there bool) string {
	if !there {
		return "between runs"
	}
	return p.where
}

// The lists that statements are given tell them apart, in every way to send them:
// that of a claim begins with the priority of a lane, those of what starts or ends
// runs with the id of one, or they are two arrays, of ids and of claims.
func sendsClaim(b []byte) bool { return bytes.Contains(b, []byte(`[{"p":`)) }

func sendsEnd(b []byte) bool { return bytes.Contains(b, []byte(`[{"id":`)) || runArrays.Match(b) }

// What places a schedule, or moves it on, has the fingerprint of its times.
func sendsTick(b []byte) bool { return fingerprint.Match(b) }

var fingerprint = regexp.MustCompile(`\b[0-9a-f]{32}\b`)

// What tells of the ends of flows' steps, or spreads a list, has their ids: a run's
// number is above the thirtieth bit.
func sendsTell(b []byte) bool { return stepIDs.Match(b) }

var stepIDs = regexp.MustCompile(`\[[0-9]{10,}[],]`)

var runArrays = regexp.MustCompile(`\{[0-9]+(,[0-9]+)*\}[^{}]{1,60}\{[0-9]{12,}`)

// atJob is the same injection at several points.
func atJob(inject func(s *jobSlot, ctx, intake context.Context, at jobPoint) error, points ...jobPoint) (all []jobInjection) {
	for _, p := range points {
		all = append(all, jobInjection{p, inject})
	}
	return all
}

// jobFaultRows are all faults of a run of jobs. The order is that of -h, and of what
// a seed draws.
var jobFaultRows = slices.Concat(jobWorkerFaults, jobServerFaults, jobHandlerFaults, jobOperatorFaults, jobEmitterFaults, jobEnqueueFaults, jobScheduleFaults, jobFlowFaults, jobMannerFaults)

// jobFaultTable is what they are.
var jobFaultTable = func() (t fault.Table) {
	for _, f := range jobFaultRows {
		t = append(t, f.Row)
	}
	return t
}()

// ParseJobFaults reads the faults of a run of jobs as ParseFaults does the others.
func ParseJobFaults(s string) (Intensities, error) { return jobFaultTable.Parse(s) }

// JobFaultTable is the faults of a run of jobs as a person reads them.
func JobFaultTable() []oracle.Line { return jobFaultTable.Lines() }

// AllJobFaults is every fault of a run of jobs, as much of it as usual.
func AllJobFaults() Intensities { return jobFaultTable.All() }

// String is for -faults.
func (i Intensities) String() string {
	if maps.Equal(i, faultTable.All()) || maps.Equal(i, jobFaultTable.All()) {
		return "all"
	}
	return bothTables.Format(i)
}

// bothTables is the faults of both kinds of runs: some have the same name.
var bothTables = func() fault.Table {
	all := slices.Clone(faultTable)
	for _, r := range jobFaultTable {
		if !slices.Contains(all.Names(), r.Name) {
			all = append(all, r)
		}
	}
	return all
}()

// jobInjections are those of all faults, as often as the faults are intense.
func jobInjections(on Intensities) (all []fault.Card[jobInjection]) {
	for _, f := range jobFaultRows {
		for _, i := range f.worker {
			all = append(all, fault.Card[jobInjection]{What: i, Times: on[f.Name]})
		}
	}
	return all
}

// drawJobFaults draws about half of the faults, and how intense each is.
func drawJobFaults(seed uint64) Intensities {
	r, drawn := fault.Dice(seed, "faults of jobs"), Intensities{}
	for _, f := range jobFaultRows {
		likely := 0.55
		if f.seldom {
			likely = 0.25
		}
		on, factor := chance(r, likely), oneOf(r, 0.5, 1, 1, 2)
		if on {
			drawn[f.Name] = factor
		}
	}
	if drawn.anyJob(func(f jobFaultRow) bool { return f.async }) {
		drawn["server-crash"] = max(drawn["server-crash"], 1) // or nothing is taken back
	}
	return drawn
}

// ableJobs leaves out the faults that this server cannot do.
func (d *database) ableJobs(faults Intensities) Intensities {
	left := Intensities{}
	for _, f := range jobFaultRows {
		if x, on := faults[f.Name]; on && !slices.ContainsFunc(f.needs, func(r *requirement) bool { return !r.met(d) }) {
			left[f.Name] = x
		}
	}
	return left
}

// anyJob reports whether a fault is on that is of a kind.
func (i Intensities) anyJob(is func(jobFaultRow) bool) bool {
	return slices.ContainsFunc(jobFaultRows, func(f jobFaultRow) bool { return i[f.Name] > 0 && is(f) })
}

// jobCounters are what a run of jobs counts, in the order of printing.
func jobCounters() []history.Fault {
	all := []history.Fault{enqueuesCommitted, conflicts, transactionsBrokenOff, slowStarts}
	for _, f := range jobFaultRows {
		for _, c := range slices.Concat(f.Counts, f.also) {
			if !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	return all
}
