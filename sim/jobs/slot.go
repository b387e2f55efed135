package jobs

import (
	"bytes"
	"context"
	"fmt"
	"regexp"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
	"github.com/pgfrontier/worker/sim/network"
	"github.com/pgfrontier/worker/sim/stage"
)

// slot is a place for a worker of jobs.
type slot struct {
	stage.Place[*node]
	of   *shared
	deck *fault.Deck[injection]
}

func newSlot(number int, of *shared, cards []fault.Card[injection]) *slot {
	s := of.scenario
	dice := fault.Dice(s.Seed, fmt.Sprintf("slot %d", number))
	return &slot{
		Place: stage.Place[*node]{
			Dice: dice, On: of.on.Instance.Database, Tally: &of.Tally, History: of.History, Calm: s.Knobs.Calm, Outage: s.Knobs.Outage,
			Begin: func(ctx context.Context, life int) (*node, error) { return of.startNode(ctx, number, life) },
		},
		of: of, deck: fault.NewDeck(dice, cards),
	}
}

// injection is a way in which a fault is injected into a worker, and when.
type injection struct {
	at     point
	inject func(s *slot, ctx, intake context.Context, at point) error
}

// at is the same injection at several points. A point that is named twice is
// drawn twice as often.
func at(inject func(s *slot, ctx, intake context.Context, at point) error, points ...point) (all []injection) {
	for _, p := range points {
		all = append(all, injection{p, inject})
	}
	return all
}

// point is a moment in the life of a worker of jobs: a handler begins, or
// something is sent, or answered.
type point struct {
	where    string
	sends    func([]byte) bool // nil: a handler begins
	answered bool
}

var (
	inRun       = point{where: history.InRun}
	beforeClaim = point{history.BeforeClaim, sendsClaim, false}
	afterClaim  = point{history.AfterClaim, sendsClaim, true}
	beforeEnd   = point{history.BeforeEnd, sendsEnd, false}
	afterEnd    = point{history.AfterEnd, sendsEnd, true}
	beforeTick  = point{history.BeforeTick, sendsTick, false}
	afterTick   = point{history.AfterTick, sendsTick, true}
	beforeTell  = point{history.BeforeTell, sendsTell, false}
	afterTell   = point{history.AfterTell, sendsTell, true}
	beforeTx    = point{history.BeforeCommit, network.Commits, false}
	afterTx     = point{history.AfterCommit, network.Commits, true}
)

// found says where a fault was injected.
func (p point) found(there bool) string {
	if !there {
		return "between runs"
	}
	return p.where
}

// The lists in the parameters distinguish statements in every exec mode. The list of a claim begins
// with the priority of a lane. The list of a start or an end begins with a run's id, or there are
// two arrays, of ids and of claims.
func sendsClaim(b []byte) bool { return bytes.Contains(b, []byte(`[{"p":`)) }

func sendsEnd(b []byte) bool { return bytes.Contains(b, []byte(`[{"id":`)) || runArrays.Match(b) }

// A statement that places a schedule, or moves it on, has the fingerprint of its times.
func sendsTick(b []byte) bool { return fingerprint.Match(b) }

var fingerprint = regexp.MustCompile(`\b[0-9a-f]{32}\b`)

// A statement that reports the ends of flows' steps, or spreads a list, has the ids of steps: a
// run's number is above the thirtieth bit.
func sendsTell(b []byte) bool { return stepIDs.Match(b) }

var stepIDs = regexp.MustCompile(`\[[0-9]{10,}[],]`)

var runArrays = regexp.MustCompile(`\{[0-9]+(,[0-9]+)*\}[^{}]{1,60}\{[0-9]{12,}`)

// run keeps a worker going and injects faults until intake ends.
func (s *slot) run(ctx, intake context.Context) error {
	return s.Keep(ctx, intake, func() error {
		next, ok := s.deck.Deal()
		if !ok {
			return nil
		}
		return next.inject(s, ctx, intake, next.at)
	})
}

// inject injects a fault at a point or, if it is not reached, without one. It does nothing if
// intake ends first.
func (s *slot) inject(intake context.Context, at point, do func()) (injected, there bool) {
	p := network.NewFailpoint(do)
	if at.sends == nil {
		s.Node.armed.Store(p)
	} else {
		s.Node.Net.SetTrap(at.sends, at.sends, at.answered, p.Fire)
	}
	if s.AwaitHit(intake, p) {
		return true, true
	}
	s.Node.Net.ClearTrap()
	if intake.Err() != nil {
		return false, false
	}
	do()
	return true, false
}
