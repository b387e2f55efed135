package consume

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pgfrontier/worker/coord"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/reader"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/store/consumer"
)

// maxType is the longest aggregate type, in bytes: the key of an event's index
// holds no more.
const maxType = 2_704

// unit is what is assigned, checkpointed and shown: a consumer, or a part of one
// that is split, see package partition.
type unit struct {
	name  string
	slots partition.Range
	*declared
	status *unitStatus
	reload *reloadSignal
	voids  voidRows
	log    string // the incarnation in which its checkpoint was last sound
	// handled is the last event that this worker has handled and committed for it, or the one
	// at the checkpoint that it has loaded.
	handled struct {
		position int64 // 0: none
		is       reader.Fingerprint
	}
}

// declared is what a consumer says of itself.
type declared struct {
	title    string // its name; that of its units has their slots
	consumer consumer.Consumer
	bulk     consumer.BatchConsumer // the same, if it takes whole batches
	forgets  consumer.Forgetter     // the same, if it forgets aggregates
	types    []string               // none: all
	start    consumer.Start
	placed   chan struct{} // closed when it has its first checkpoint; nil if it had one at the start

	scope  scope.Scope // of types, version and start
	demand coord.Demand
	key    consumer.Key
	// inTurn has room for the one part that runs, of a consumer that is split by
	// other builds and does not say that its events may be handled at the same
	// time. It is nil if it says so.
	inTurn chan struct{}
}

// unit makes the unit of some of the consumer's slots.
func (d *declared) unit(slots partition.Range) *unit {
	u := &unit{name: partition.Name(d.title, slots), slots: slots, declared: d, reload: newReloadSignal()}
	u.status = &unitStatus{s: observe.ConsumerStatus{Name: u.name, Consumer: d.title, Partition: slots.String()}}
	u.voids.n.Store(voidsKept) // due with the first row: earlier owners may have left some
	return u
}

// started describes the unit whose loop begins.
func (u *unit) started(batchSize int) observe.ConsumerStarted {
	return observe.ConsumerStarted{Consumer: u.name, Types: slices.Clone(u.scope.Types), Start: u.scope.Start, BatchSize: batchSize, Partitions: u.demand.Count}
}

// isPart reports whether the unit is one of a consumer that is split.
func (u *unit) isPart() bool { return u.slots != partition.All }

// unitsOf checks the consumers and sorts them by name.
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
	return units, errtext.Join(all...)
}

// unitOf asks a consumer for what it says of itself.
func unitOf(c consumer.Consumer) (_ *unit, err error) {
	if isNil(c) {
		return nil, errors.New("is nil")
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("a %T panicked when asked for its name, types, version, start or partitions: %s", c, errtext.Panic(v))
		}
	}()
	d := &declared{title: c.Name(), consumer: c, demand: coord.Single}
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

// selects asks a consumer for the version of its code, and says what that selects.
func (d *declared) selects() (s scope.Scope, err error) {
	version, start := 0, ""
	if v, ok := d.consumer.(consumer.Versioned); ok {
		if version = v.Version(); version < 0 {
			return s, fmt.Errorf("%q: Version gives %d, which is below 0", d.title, version)
		}
	}
	switch after, atHead := d.start.Position(); {
	case atHead:
		start = "head"
	case after > 0:
		start = strconv.FormatInt(after, 10)
	}
	return scope.Of(d.types, version, start), nil
}

// partitions asks a consumer for its partitions.
func (d *declared) partitions() error {
	c, ok := d.consumer.(consumer.Partitioned)
	if !ok {
		d.inTurn = make(chan struct{}, 1)
		return nil
	}
	p := c.Partitions()
	if err := p.Check(); err != nil {
		return fmt.Errorf("%q: Partitions: %w", d.title, err)
	}
	d.demand, d.key = coord.Demand{Count: p.Count, Key: p.Key.Name()}, p.Key
	return nil
}

// checkType refuses a type that no event can have.
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

// isNil also finds a nil pointer inside an interface.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}
