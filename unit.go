package worker

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/store/consumer"
)

// maxType is the longest aggregate type, in bytes: the key of an event's index
// holds no more.
const maxType = 2_704

// unit is what is assigned, checkpointed and shown: today a consumer.
type unit struct {
	name     string
	consumer consumer.Consumer
	bulk     consumer.BatchConsumer // the same, if it takes whole batches
	types    []string               // none: all
	start    consumer.Start
	reload   *reloadSignal
	voids    voidRows
	log      string        // the incarnation in which its checkpoint was last sound
	placed   chan struct{} // closed when it has its first checkpoint; nil if it had one at the start
}

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
func unitOf(c consumer.Consumer) (u *unit, err error) {
	if isNil(c) {
		return nil, errors.New("is nil")
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("a %T panicked when asked for its name, types or start: %s", c, errtext.Panic(v))
		}
	}()
	u = &unit{name: c.Name(), consumer: c, reload: newReloadSignal()}
	u.voids.n.Store(voidsKept) // due with the first row: earlier owners may have left some
	if s, ok := c.(consumer.ScopedConsumer); ok {
		u.types = slices.Clone(s.AggregateTypes())
	}
	u.bulk, _ = c.(consumer.BatchConsumer)
	if s, ok := c.(consumer.Starter); ok {
		u.start = s.StartAt()
	}
	if err := ident.CheckConsumer(u.name); err != nil {
		return nil, fmt.Errorf("%T: Name: %w", c, err)
	}
	for _, t := range u.types {
		if err := checkType(t); err != nil {
			return nil, fmt.Errorf("%q: AggregateTypes gives %s, which %w: no event is of such a type", u.name, errtext.Value(t), err)
		}
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
