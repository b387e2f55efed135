package events

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/pgfrontier/worker/internal/backoff"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/oracle"
	"github.com/pgfrontier/worker/sim/stage"
)

const (
	consumersPaused     history.Fault = "consumers paused for a moment by an operator"
	ConsumersSetBack    history.Fault = "consumers set back by an operator"
	consumersSetForward history.Fault = "consumers set forward by an operator"
	eventsSkipped       history.Fault = "events skipped by an operator"
	consumersRescaled   history.Fault = "numbers of partitions fixed by an operator"
)

// operatorFaults are what operators do to a consumer that works.
var operatorFaults = []faultRow{
	{Row: fault.New("pause", "pauses a consumer for a moment, as an operator would", consumersPaused), worker: at((*Slot).pauseConsumer, afterGuard)},
	{Row: fault.New("reset", "sets a consumer back, as an operator would", ConsumersSetBack).Reaching(oracle.ConsumersSetBack),
		worker: at((*Slot).setBack, afterGuard, afterGuard)},
	{Row: fault.New("forward", "sets a paused consumer forward, past events", consumersSetForward), worker: at((*Slot).setForward, afterGuard)},
	{Row: fault.New("skip", "lets a paused consumer leave an event out", eventsSkipped), worker: at((*Slot).skipEvent, afterGuard, afterGuard)},
	{Row: fault.New("rescale", "fixes the number of partitions of a consumer, or leaves it to the workers' code",
		consumersRescaled).Reaching(oracle.Rescaled),
		worker: at((*Slot).rescale, afterGuard, afterGuard)},
}

// operator is somebody at work on a consumer.
type operator struct {
	*ops.Operator
	slot     *Slot
	consumer string
}

// operator draws a consumer, often the one in partitions, so that it is found split and whole. A
// consumer that begins at the head may have no checkpoint yet.
func (s *Slot) operator(ctx context.Context) (operator, error) {
	o, err := ops.New(s.on.DB)
	of, placed := fault.OneOf(s.Dice, s.scenario.Scope...), true
	if len(of.Sometimes) > 0 {
		of = s.scenario.Scope[0] // the oracle judges differing builds without operators
	}
	if last := s.scenario.Scope[len(s.scenario.Scope)-1]; last.Partitioned && fault.Chance(s.Dice, 0.4) {
		of = last
	}
	if err == nil && of.AtHead {
		err = s.on.DB.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM consumer_checkpoints WHERE consumer_name = $1::text)`, of.Name).Scan(&placed)
	}
	if !placed {
		of = s.scenario.Scope[0]
	}
	return operator{o, s, of.Name}, err
}

// did counts and records what the operator did.
func (o operator) did(f history.Fault, what string) {
	o.slot.Tally.Add(f, 1)
	o.slot.History.Add("", o.consumer, history.FaultInjected, history.Injection{Fault: f, Where: what})
}

// checkpoint reads the consumer's checkpoint; if it is split, that of its furthest unit.
func (o operator) checkpoint(ctx context.Context) (at int64, err error) {
	units, err := o.units(ctx)
	for _, u := range units {
		at = max(at, u.Checkpoint)
	}
	return at, err
}

// units reads the checkpoints of the consumer's units, which are itself if it is not split.
func (o operator) units(ctx context.Context) (all []history.Standing, err error) {
	standings, err := o.slot.on.Standings(ctx)
	for _, s := range standings {
		if name, _, _ := strings.Cut(s.Consumer, "#"); name == o.consumer {
			all = append(all, s)
		}
	}
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("sim: consumer %s has no checkpoint", o.consumer)
	}
	return all, err
}

// whilePaused does something to a paused consumer, which goes on afterwards.
// It does nothing if another operator has paused it.
func (s *Slot) whilePaused(ctx context.Context, do func(operator) error) error {
	o, err := s.operator(ctx)
	if err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	err = o.Pause(ctx, o.consumer, stage.By)
	if errors.Is(err, ops.ErrUnchanged) {
		return nil
	}
	if err == nil {
		err = do(o)
	}
	if err = errors.Join(s.on.Forgive(err), o.resume(ctx)); err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	return nil
}

// resume resumes the consumer. The consumer may run already, where the server may have crashed
// before it answered.
func (o operator) resume(ctx context.Context) error {
	return o.slot.on.Steadily(ctx, func() error {
		err := o.Resume(ctx, o.consumer, stage.By)
		if o.slot.on.Mortal && errors.Is(err, ops.ErrUnchanged) {
			return nil
		}
		return err
	})
}

// pauseConsumer pauses a consumer for a moment.
func (s *Slot) pauseConsumer(ctx, intake context.Context, _ point) error {
	return s.whilePaused(ctx, func(o operator) error {
		o.did(consumersPaused, "")
		s.Pause(intake, 100*time.Millisecond, 800*time.Millisecond)
		return nil
	})
}

// rescale changes how many parts a consumer is to have.
func (s *Slot) rescale(ctx, _ context.Context, _ point) error {
	o, err := ops.New(s.on.DB)
	for _, c := range s.scenario.Scope {
		if !c.Partitioned || err != nil {
			continue
		}
		n := fault.OneOf(s.Dice, append([]int{0}, partitionCounts...)...)
		if err = o.Partition(ctx, c.Name, n, stage.By); err == nil {
			operator{o, s, c.Name}.did(consumersRescaled, fmt.Sprintf("%d partitions", n))
		}
	}
	if errors.Is(err, ops.ErrNotFound) { // no worker has placed it yet
		return nil
	}
	return s.on.Forgive(err)
}

// setBack resets a consumer, or one of its units, to an earlier position, whatever it is doing.
func (s *Slot) setBack(ctx, _ context.Context, _ point) error {
	const furthest = 300 // positions
	o, err := s.operator(ctx)
	if err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	units, err := o.units(ctx)
	if err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	u := fault.OneOf(s.Dice, units...)
	name, at := u.Consumer, u.Checkpoint
	if fault.Chance(s.Dice, 0.5) {
		name = o.consumer
	}
	to := max(at-1-s.Dice.Int64N(furthest), 0)
	err = o.Reset(ctx, name, to, stage.By)
	var notSettled *ops.NotSettledError
	switch {
	case errors.Is(err, ops.ErrUnchanged), errors.As(err, &notSettled): // another has set it back further
		return nil
	case errors.Is(err, ops.ErrNotFound) && name != o.consumer: // it was split, or merged
		return nil
	case err != nil:
		return fmt.Errorf("sim: %w", err)
	}
	o.did(ConsumersSetBack, fmt.Sprintf("%s from %d to %d", name, at, to))
	return nil
}

// awaited is how long an operator waits for what can be set forward or skipped.
const awaited = 2 * time.Second

// setForward resets a consumer to a later, settled position.
func (s *Slot) setForward(ctx, intake context.Context, _ point) error {
	return s.whilePaused(ctx, func(o operator) error {
		for end := time.Now().Add(s.on.Bounds.Of(awaited)); time.Now().Before(end); {
			at, err := o.checkpoint(ctx)
			if err != nil {
				return err
			}
			var limit *ops.NotSettledError // says how far it may go
			if err := o.Reset(ctx, o.consumer, math.MaxInt64, stage.By); !errors.As(err, &limit) {
				return fmt.Errorf("a reset beyond everything returned %w", err)
			}
			if limit.Settled > at {
				to := at + 1 + s.Dice.Int64N(limit.Settled-at)
				err := o.Reset(ctx, o.consumer, to, stage.By)
				if errors.Is(err, ops.ErrUnchanged) { // another has set it back to there
					return nil
				}
				if err == nil {
					o.did(consumersSetForward, fmt.Sprintf("from %d to %d", at, to))
				}
				return err
			}
			if !backoff.Sleep(intake, 20*time.Millisecond) {
				return nil
			}
		}
		return nil
	})
}

// skipEvent makes a consumer, or a unit of it, skip the next event.
func (s *Slot) skipEvent(ctx, intake context.Context, _ point) error {
	return s.whilePaused(ctx, func(o operator) error {
		units, err := o.units(ctx)
		if err != nil {
			return err
		}
		u := fault.OneOf(s.Dice, units...)
		for end, position := time.Now().Add(s.on.Bounds.Of(awaited)), u.Checkpoint; time.Now().Before(end); {
			err := o.SkipEvent(ctx, u.Consumer, position, stage.By)
			var next *ops.NotNextError
			switch {
			case err == nil:
				o.did(eventsSkipped, fmt.Sprintf("position %d by %s", position, u.Consumer))
				return nil
			case errors.Is(err, ops.ErrNotFound) && u.Consumer != o.consumer: // it was split
				return nil
			case !errors.As(err, &next):
				return err
			case next.Next > 0:
				position = next.Next
			case !backoff.Sleep(intake, 20*time.Millisecond):
				return nil
			}
		}
		return nil
	})
}
