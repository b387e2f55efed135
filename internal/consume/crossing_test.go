package consume

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/runtime"

	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/consume/failure"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/store"
)

// drawnLog has an event at some positions. Some of them appear only between the read of the
// new rows and the read of the late ones.
type drawnLog struct{ kinds, later map[int64]string }

const lastDrawn = 24

func (l drawnLog) kind(position int64) string { return l.kinds[position] + l.later[position] }

func (l drawnLog) ReadEvents(_ context.Context, _ store.Querier, after int64, limit int) ([]store.PersistedEvent, error) {
	return drawnEvents(func(p int64) string { return l.kinds[p] }, after, lastDrawn, limit), nil
}

func (l drawnLog) ReadRanges(_ context.Context, _ store.Querier, ranges []store.Range, limit int) (events []store.PersistedEvent, _ error) {
	for _, r := range ranges {
		events = append(events, drawnEvents(l.kind, r.First-1, r.Last, limit-len(events))...)
	}
	return events, nil
}

func (l drawnLog) GetLatestGlobalPosition(context.Context, store.Querier) (int64, error) {
	return lastDrawn, nil
}

func drawnEvents(kind func(int64) string, after, through int64, limit int) (events []store.PersistedEvent) {
	for p := after + 1; p <= through && len(events) < limit; p++ {
		if kind(p) != "" {
			events = append(events, store.PersistedEvent{GlobalPosition: p, AggregateType: kind(p)})
		}
	}
	return events
}

// scopedDrawnLog also filters and counts.
type scopedDrawnLog struct{ drawnLog }

func (l scopedDrawnLog) ReadScoped(_ context.Context, _ store.Querier, r store.ScopedRange) (store.ScopedPage, error) {
	wanted := func(p int64) string {
		if slices.Contains(r.Types, l.kinds[p]) {
			return l.kinds[p]
		}
		return ""
	}
	page := store.ScopedPage{Events: drawnEvents(wanted, r.After, r.UpTo, r.Limit), Through: r.UpTo}
	if len(page.Events) == r.Limit {
		page.Through = page.Events[r.Limit-1].GlobalPosition
	}
	return page, nil
}

func (l scopedDrawnLog) CountMissing(_ context.Context, _ store.Querier, after, through int64) (m store.Missing, err error) {
	for p := after + 1; p <= through; p++ {
		if l.kinds[p] != "" {
			continue
		}
		if m.Count == 0 {
			m.First = p
		}
		m.Last = p
		m.Count++
	}
	return m, nil
}

// unprovenLog is a log in memory. It has no server whose incarnation could be proven.
type unprovenLog struct{ store.Log }

func (l unprovenLog) At(string) store.Log { return l.Log }

// drawnRead is a random state of the log for a read.
type drawnRead struct {
	log     drawnLog
	doubted map[int64]bool
	v       frontier.Value
	open    []progress.OpenRange
	c       *consumerLoop
}

func drawLook(t *rapid.T) drawnRead {
	d := drawnRead{log: drawnLog{map[int64]string{}, map[int64]string{}}, doubted: map[int64]bool{}}
	checkpoint := rapid.Int64Range(0, lastDrawn).Draw(t, "checkpoint")
	d.v = frontier.Value{Token: "t", Safe: rapid.Int64Range(0, lastDrawn).Draw(t, "safe")} // of another owner, so it may be lower
	for p := int64(1); p <= lastDrawn; p++ {
		kind := rapid.SampledFrom([]string{"", "", "A", "A", "B"}).Draw(t, "type")
		doubted := p <= d.v.Safe && rapid.IntRange(0, 3).Draw(t, "in doubt") == 0
		switch {
		case kind == "":
		case (doubted || p > d.v.Safe) && rapid.Bool().Draw(t, "appears later"):
			d.log.later[p] = kind
		default:
			d.log.kinds[p] = kind
		}
		if d.doubted[p] = doubted; doubted {
			d.v.Doubts = append(d.v.Doubts, store.Range{First: p, Last: p})
		}
		switch n := len(d.open); {
		case p > checkpoint || rapid.IntRange(0, 2).Draw(t, "open") > 0:
		case n > 0 && d.open[n-1].Last == p-1 && rapid.Bool().Draw(t, "one range"):
			d.open[n-1].Last = p
		default:
			d.open = append(d.open, progress.OpenRange{Range: store.Range{First: p, Last: p}, ID: int64(n), Seen: time.Unix(p, 0)})
		}
	}
	u := (&spec{consumerName: "c"}).unit(partition.All)
	if rapid.Bool().Draw(t, "only A") {
		u.types = []string{"A"}
	}
	w := &shared{env: env{reports: reports{observers: &runtime.Observers{}}, frontier: frontier.New(frontier.Config{})}, cfg: Config{BatchSize: rapid.IntRange(1, 8).Draw(t, "batch size"), MaxOpenRanges: rapid.IntRange(1, 6).Draw(t, "max open")}}
	w.bound = unprovenLog{d.log}
	if rapid.Bool().Draw(t, "filters in SQL") {
		w.bound = unprovenLog{scopedDrawnLog{d.log}}
	}
	w.ahead = reader.NewAhead(w.bound, w.cfg.BatchSize, nil, nil, 0)
	d.c = newLoop(w, u)
	d.c.progress = &progress.State{Position: checkpoint, Open: d.open}
	if rapid.IntRange(0, 2).Draw(t, "something failed") == 0 {
		bound := rapid.Int64Range(1, lastDrawn).Draw(t, "bound")
		d.c.tally.Bisection = failure.Bisection{Until: bound, Bound: bound, Limit: rapid.IntRange(0, 2).Draw(t, "half")}
	}
	return d
}

// read reads the drawn state.
func (d drawnRead) read(t *rapid.T) *work {
	p, err := d.c.reader.Read(context.Background(), nil, &d.v, d.c.place())
	if err != nil {
		t.Fatal(err)
	}
	return d.c.workOf(p, &d.v, visible(d.c.w.frontier, &d.v))
}

// In any state, each position that a consumer passes ends in its true state, and so does
// each of its open positions. The consumer gets exactly the events that have appeared.
func TestEachPositionGetsItsState(t *testing.T) {
	tier.Checks(t, 5_000, 100_000)
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		d := drawLook(t)
		p := d.read(t)
		blocked := p.plan(d.c.w.cfg.MaxOpenRanges)
		a := p.advance
		checkpoint := d.c.progress.Position
		if a.To < checkpoint || a.To > max(checkpoint, d.v.Safe) {
			t.Fatalf("goes from %d to %d, safe is %d", checkpoint, a.To, d.v.Safe)
		}
		given := map[int64]bool{}
		for i, e := range p.Events {
			if i > 0 && e.GlobalPosition <= p.Events[i-1].GlobalPosition || i >= d.c.w.cfg.BatchSize {
				t.Fatalf("batches of %d, but it is given %+v", d.c.w.cfg.BatchSize, p.Events)
			}
			given[e.GlobalPosition] = true
		}
		ends := d.endings(t, a)
		var void store.Missing
		for pos := int64(1); pos <= lastDrawn; pos++ {
			end, kind := ends[pos], d.log.kinds[pos]
			wasOpen := slices.ContainsFunc(d.open, func(o progress.OpenRange) bool { return o.First <= pos && pos <= o.Last })
			want, gets := progress.MarkState(""), false
			switch {
			case wasOpen && end == progress.Late:
				kind = d.log.kind(pos)
				want, gets = progress.Late, d.wants(kind)
				if kind == "" {
					t.Fatalf("position %d is late without an event", pos)
				}
			case wasOpen && end == progress.Void:
				want = progress.Void
				if d.log.kind(pos) != "" || d.doubted[pos] || pos > d.v.Safe {
					t.Fatalf("position %d is void: event %q, in doubt: %v, safe is %d", pos, d.log.kind(pos), d.doubted[pos], d.v.Safe)
				}
			case wasOpen:
				want = progress.Open
				if d.allRead(p) && (d.log.kind(pos) != "" || pos <= d.v.Safe && !d.doubted[pos]) {
					t.Fatalf("position %d stays open: event %q, in doubt: %v, safe is %d", pos, d.log.kind(pos), d.doubted[pos], d.v.Safe)
				}
			case pos <= checkpoint || pos > a.To:
			case kind != "":
				gets = d.wants(kind)
			case d.doubted[pos]:
				want = progress.Open
			default:
				if void.Count++; void.Count == 1 {
					void.First = pos
				}
				void.Last = pos
			}
			if end != want || given[pos] != gets {
				t.Fatalf("position %d of (%d, %d], was open: %v, event %q: ends as %q, want %q; is given: %v, want %v", pos, checkpoint, a.To, wasOpen, d.log.kind(pos), end, want, given[pos], gets)
			}
			seen[string(end)]++
		}
		if sum := voidSum(a); sum != void {
			t.Fatalf("passed as void: %+v, want %+v", sum, void)
		}
		switch {
		case blocked:
			seen["blocked"]++
		case a.To < d.v.Safe && !p.Full && !d.c.tally.Bisection.Active():
			t.Fatalf("stops at %d of %d, and nothing more is to come", a.To, d.v.Safe)
		}
	})
	for _, what := range []string{string(progress.Open), string(progress.Late), string(progress.Void), "blocked"} {
		if seen[what] == 0 {
			t.Errorf("it never came to %q: %v", what, seen)
		}
	}
}

// wants reports whether the consumer wants events of a type.
func (d drawnRead) wants(kind string) bool {
	return len(d.c.unit.types) == 0 || slices.Contains(d.c.unit.types, kind)
}

// allRead reports whether every open range was read. A range is left out at the open range
// limit, or if an earlier event failed.
func (d drawnRead) allRead(p *work) bool {
	return !d.c.tally.Bisection.Active() && len(p.Positions.Found) < d.c.w.cfg.BatchSize
}

// endings returns the final state of the positions that were open or are open now. It
// checks that no position ends twice, and that the open ranges are within the limit.
func (d drawnRead) endings(t *rapid.T, a progress.Advance) map[int64]progress.MarkState {
	ends := map[int64]progress.MarkState{}
	open, opened := 0, false
	end := func(first, last int64, state progress.MarkState) {
		for p := first; p <= last; p++ {
			if ends[p] != "" {
				t.Fatalf("position %d ends twice, as %q and %q", p, ends[p], state)
			}
			ends[p] = state
		}
	}
	for _, o := range d.open {
		if !slices.Contains(a.Gone, o.ID) {
			end(o.First, o.Last, progress.Open)
			open++
		}
	}
	for _, m := range a.Marks {
		if m.State == progress.Void && m.Seen == nil {
			continue // passed at once, see voidSum
		}
		if m.Missing != m.Last-m.First+1 {
			t.Fatalf("%+v is no range", m)
		}
		if end(m.First, m.Last, m.State); m.State == progress.Open {
			open++
			opened = opened || m.Seen == nil
		}
	}
	if opened && open > d.c.w.cfg.MaxOpenRanges {
		t.Fatalf("%d ranges are open, at most %d are allowed", open, d.c.w.cfg.MaxOpenRanges)
	}
	return ends
}

// voidSum returns the audited count of the positions that were passed as void.
func voidSum(a progress.Advance) (sum store.Missing) {
	for _, m := range a.Marks {
		if m.State == progress.Void && m.Seen == nil {
			sum = store.Missing{Range: store.Range{First: m.First, Last: m.Last}, Count: m.Missing}
		}
	}
	return sum
}
