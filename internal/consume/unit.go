package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/consume/partitions"
	"github.com/pgfrontier/worker/internal/consume/txcheck"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/progress"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store/consumer"
)

// maxType is the longest aggregate type in bytes that fits the key of an event's index.
const maxType = 2_704

// unit has one assignment, one checkpoint and one status. It is a consumer, or a part of a
// split consumer, see package partition.
type unit struct {
	name  string
	slots partition.Range
	*spec
	status *unitStatus
	reload *reloadSignal
	voids  voidRows
	log    txcheck.Log
}

// spec is a consumer's specification.
type spec struct {
	consumerName string // the consumer's name; the name of a part adds its slots
	consumer     consumer.Consumer
	bulk         consumer.BatchConsumer // the consumer, if it handles whole batches
	forgets      consumer.Forgetter     // the consumer, if it forgets aggregates
	types        []string               // none: all types
	start        consumer.Start
	placed       chan struct{} // closed after the first checkpoint was placed; nil if it existed at the start

	scope  scope.Scope // of types, version and start
	demand partition.Demand
	key    partitions.Key
	// exclusive has room for one running part. It is for a consumer that other builds split
	// although its events must not be handled at the same time. It is nil if they may be.
	exclusive chan struct{}
}

// unit makes the unit of some of the consumer's slots.
func (d *spec) unit(slots partition.Range) *unit {
	u := &unit{name: partition.Name(d.consumerName, slots), slots: slots, spec: d, reload: newReloadSignal()}
	u.status = &unitStatus{s: observe.ConsumerStatus{Name: u.name, Consumer: d.consumerName, Partition: slots.String()}}
	u.voids.n.Store(voidsKept) // the first row starts a compaction, since earlier owners may have left rows
	return u
}

// started describes the unit whose loop begins.
func (u *unit) started(batchSize int) observe.ConsumerStarted {
	return observe.ConsumerStarted{Consumer: u.name, Types: slices.Clone(u.scope.Types), Start: u.scope.Start, BatchSize: batchSize, Partitions: u.demand.Count}
}

// recordHandled records the last event of a committed batch if it is a new event.
func (u *unit) recordHandled(w *work) {
	if w.last.position > w.from.Position && w.retried == nil {
		u.log.Handled(w.last.position, w.last.is)
	}
}

// isPart reports whether the unit is a part of a split consumer.
func (u *unit) isPart() bool { return u.slots != partition.All }

// enter waits until no other part of the consumer runs, if their events must not be handled
// at the same time. ok is false if intake has ended before. The caller calls leave.
func (u *unit) enter(intake context.Context) (leave func(), ok bool) {
	if !u.isPart() || u.exclusive == nil {
		return func() {}, true
	}
	select {
	case u.exclusive <- struct{}{}:
		return func() { <-u.exclusive }, true
	case <-intake.Done():
		return nil, false
	}
}

// unitsOf checks the consumers and returns their units in order of name.
func unitsOf(consumers []consumer.Consumer) ([]*unit, error) {
	if len(consumers) == 0 {
		return nil, errors.New("consumers is empty: a worker needs at least one")
	}
	var units []*unit
	var all []error
	seen := map[string]int{}
	for i, c := range consumers {
		u, err := unitOf(c)
		if err != nil {
			all = append(all, fmt.Errorf("consumers[%d]: %w", i, err))
			continue
		}
		if first, double := seen[u.name]; double {
			all = append(all, fmt.Errorf("consumers[%d]: the name %q is already that of consumers[%d]; a name is a checkpoint, so each consumer needs its own", i, u.name, first))
			continue
		}
		seen[u.name] = i
		units = append(units, u)
	}
	slices.SortFunc(units, func(a, b *unit) int { return strings.Compare(a.name, b.name) })
	for _, u := range units {
		if slices.ContainsFunc(units, func(o *unit) bool { return o.name == u.scope.Projection && o.scope.Projection != o.name }) {
			all = append(all, fmt.Errorf("%q: Projection gives %q, the name of a consumer that is no version of it: WaitFor would wait for that consumer; give it the same Projection", u.name, u.scope.Projection))
		}
	}
	return units, errtext.Join(all...)
}

// unitOf returns the unit of a consumer, or an error about its specification.
func unitOf(c consumer.Consumer) (_ *unit, err error) {
	if pgdriver.IsNil(c) {
		return nil, errors.New("is nil")
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("a %T panicked when asked for its name, types, version, projection, start or partitions: %s", c, errtext.Panic(v))
		}
	}()
	d := &spec{consumerName: c.Name(), consumer: c, demand: partition.Single}
	if s, ok := c.(consumer.ScopedConsumer); ok {
		d.types = slices.Clone(s.AggregateTypes())
	}
	d.bulk, _ = c.(consumer.BatchConsumer)
	d.forgets, _ = c.(consumer.Forgetter)
	if s, ok := c.(consumer.Starter); ok {
		d.start = s.StartAt()
	}
	u := d.unit(partition.All)
	if err := ident.CheckConsumer(u.name); err != nil {
		return nil, fmt.Errorf("%T: Name: %w", c, err)
	}
	if err := d.partitions(); err != nil {
		return nil, err
	}
	for _, t := range u.types {
		if err := checkType(t); err != nil {
			return nil, fmt.Errorf("%q: AggregateTypes gives %s, which %w: no event is of such a type", u.name, errtext.Value(t), err)
		}
	}
	if d.scope, err = d.selects(); err != nil {
		return nil, err
	}
	switch after, _ := u.start.Position(); {
	case strings.Contains(u.name, "#"):
		return nil, fmt.Errorf("the name %q has a '#', which is not allowed", u.name)
	case consumer.Check(c) != nil:
		return nil, fmt.Errorf("%q: %w", u.name, consumer.Check(c))
	case after < 0:
		return nil, fmt.Errorf("%q: StartAt gives position %d, which is below 0", u.name, after)
	}
	return u, nil
}

// selects calls the consumer's Version and Projection and returns its scope.
func (d *spec) selects() (s scope.Scope, err error) {
	version, start, projection := 0, "", ""
	if v, ok := d.consumer.(consumer.Versioned); ok {
		if version = v.Version(); version < 0 {
			return s, fmt.Errorf("%q: Version gives %d, which is below 0", d.consumerName, version)
		}
	}
	switch after, atHead := d.start.Position(); {
	case atHead:
		start = "head"
	case after > 0:
		start = strconv.FormatInt(after, 10)
	}
	if v, ok := d.consumer.(consumer.Projected); ok {
		projection = v.Projection()
	}
	if projection == "" {
		return scope.Of(d.types, version, start, ""), nil
	}
	if err := ident.CheckConsumer(projection); err != nil || strings.Contains(projection, "#") {
		return s, fmt.Errorf("%q: Projection gives %s: %w", d.consumerName, errtext.Value(projection), cmp.Or(err, errors.New("a '#' is not allowed")))
	}
	return scope.Of(d.types, version, start, projection), nil
}

// partitions reads a consumer's partitions.
func (d *spec) partitions() error {
	c, ok := d.consumer.(consumer.Partitioned)
	if !ok {
		d.exclusive = make(chan struct{}, 1)
		return nil
	}
	p := c.Partitions()
	if err := p.Check(); err != nil {
		return fmt.Errorf("%q: Partitions: %w", d.consumerName, err)
	}
	d.demand, d.key = partition.Demand{Count: p.Count, Key: p.Key.Name()}, partitions.Key{Key: p.Key}
	return nil
}

// checkType returns an error for a type that no event can have.
func checkType(t string) error {
	switch {
	case t == "":
		return errors.New("is empty")
	case len(t) > maxType:
		return fmt.Errorf("is longer than %d bytes", maxType)
	case !utf8.ValidString(t) || strings.Contains(t, "\x00"):
		return errors.New("has a NUL or invalid UTF-8")
	}
	return nil
}

// unitSet is the set of units of this worker.
type unitSet struct {
	units []*unit // whole consumers, in order of name; set by prepare
	mu    sync.Mutex
	parts map[*spec][]*unit // that this worker runs, in order for each consumer
}

// unit returns a unit of this worker's consumers by name, or nil.
func (s *unitSet) unit(name string) *unit {
	title, slots, ok := partition.Parse(name)
	i, found := slices.BinarySearchFunc(s.units, title, func(u *unit, title string) int { return strings.Compare(u.name, title) })
	if !ok || !found {
		return nil
	}
	if slots == partition.All {
		return s.units[i]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.units[i].spec
	at, found := slices.BinarySearchFunc(s.parts[d], slots, func(u *unit, r partition.Range) int {
		return cmp.Or(cmp.Compare(u.slots.First, r.First), cmp.Compare(u.slots.Last, r.Last))
	})
	if !found {
		if s.parts == nil {
			s.parts = map[*spec][]*unit{}
		}
		s.parts[d] = slices.Insert(s.parts[d], at, d.unit(slots))
	}
	return s.parts[d][at]
}

// dropPart forgets a part whose loop has ended.
func (s *unitSet) dropPart(u *unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.isPart() {
		s.parts[u.spec] = slices.DeleteFunc(s.parts[u.spec], func(p *unit) bool { return p == u })
	}
}

// partsOf returns the parts of a consumer that this worker runs, in order.
func (s *unitSet) partsOf(d *spec) []*unit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.parts[d])
}

// allUnits returns the worker's consumers, each followed by its parts that this worker
// runs.
func (s *unitSet) allUnits() (all []*unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.units {
		all = append(append(all, u), s.parts[u.spec]...)
	}
	return all
}

// reached returns the lowest position of a consumer's units in this worker, or -1 if a unit
// has not loaded its progress yet.
func (s *unitSet) reached(d *spec) int64 {
	parts := s.partsOf(d)
	if len(parts) == 0 {
		return s.unit(d.consumerName).status.at()
	}
	at := parts[0].status.at()
	for _, u := range parts[1:] {
		at = min(at, u.status.at())
	}
	return at
}

// reloadSignal tells a loop that another worker or an operator has moved its consumer's
// progress.
type reloadSignal struct {
	revision atomic.Int64 // the revision that the loop knows; noRevision: none
	last     int64        // the last one that it knew; the loop's own
	c        chan struct{}
}

const noRevision = -1

func newReloadSignal() *reloadSignal {
	n := &reloadSignal{c: make(chan struct{}, 1), last: noRevision}
	n.revision.Store(noRevision)
	return n
}

// forget records that the loop knows no revision.
func (r *reloadSignal) forget() {
	if known := r.revision.Swap(noRevision); known != noRevision {
		r.last = known
	}
}

// moves returns a channel that receives when others have moved the progress from the last revision
// that the loop knew, until forget. Without such a revision it is nil.
func (r *reloadSignal) moves() <-chan struct{} {
	if r.last == noRevision {
		return nil
	}
	select {
	case <-r.c: // of before
	default:
	}
	r.revision.Store(r.last)
	return r.c
}

// signal makes the loop load the progress again before its next wait.
func (r *reloadSignal) signal() {
	select {
	case r.c <- struct{}{}:
	default:
	}
}

// voidsKept is the number of a consumer's newest audit rows that stay unchanged. After as
// many new rows of void positions, the older rows are merged with their neighbours.
const voidsKept = 20

// voidRows counts the audit rows of void positions written since the last compaction.
type voidRows struct {
	n     atomic.Int64
	after int64 // id of the last compacted audit row; owned by compact's goroutine
}

// count counts the void positions of a committed batch. It reports whether they are to be
// compacted.
func (v *voidRows) count(marks []progress.Mark) (full bool) {
	for _, m := range marks {
		if m.State == progress.Void && m.Seen == nil && v.n.Add(1) >= voidsKept {
			full = true
		}
	}
	return full
}
