package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/ops"
)

func (a *app) topVerb() *cobra.Command {
	var every time.Duration
	c := &cobra.Command{
		Use: "top", Short: "all consumers, live, to act on", Args: cobra.NoArgs,
		Long: `Shows what status shows, again and again. While the database does not answer, the
last view stays and its age is shown.

Up and down choose a consumer, enter shows it, esc goes back. Left and right choose
the column that sorts, i turns the order round. p pauses the consumer, r resumes it,
s skips its next event: each asks for the reason, shows what it would record, and
asks again. Of a consumer in partitions, enter shows the units, to choose one. q or
Ctrl-C quits.`,
		Example: "  pgfrontier top\n  pgfrontier top --every 1s --operator ann",
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			switch {
			case every < 100*time.Millisecond:
				return usage("--every %v: it is at least 100ms", every)
			case !a.live || !a.asks || a.output != "table":
				return usage("top needs a terminal: status -w shows the same as text or JSON")
			}
			return a.top(ctx, every)
		}),
	}
	f := c.Flags()
	f.SortFlags = false
	f.DurationVar(&every, "every", 2*time.Second, "how often to poll")
	f.StringVar(&a.change.operator, "operator", "", "who makes the changes (or PGFRONTIER_OPERATOR; default user@host)")
	return c
}

// top shows a board until somebody quits, or ctx ends.
func (a *app) top(ctx context.Context, every time.Duration) error {
	in, ok := a.in.(*os.File)
	if !ok {
		return usage("top needs a terminal")
	}
	first, err := a.pollAll(ctx)
	if err != nil {
		return err // before the screen is taken
	}
	t, err := takeTerminal(in, a.out)
	if err != nil {
		return usage("top needs a terminal: %w", err)
	}
	defer t.giveBack()
	ctx, cancel := context.WithCancel(ctx)
	s := &screen{app: a, ctx: ctx, terminal: t, board: newBoard(first), every: every, results: make(chan any)}
	err = s.run()
	cancel()
	s.busy.Wait()
	return cmp.Or(s.board.unknown, s.missed, err)
}

// screen shows a board on a terminal, and carries its orders out.
type screen struct {
	*app
	*terminal
	ctx   context.Context
	board board
	every time.Duration

	results chan any // what orders lead to
	busy    sync.WaitGroup
	missed  error // the unknown outcome of a change that ended after the screen
}

const sizeEvery = 250 * time.Millisecond // how often the terminal's size is asked

func (s *screen) run() error {
	keys := make(chan key)
	go s.readKeys(s.ctx, keys)
	resize := time.NewTicker(sizeEvery)
	defer resize.Stop()
	s.carryOut(orderWait{})
	for {
		wide, high, err := s.size()
		if err == nil {
			s.board, _ = s.board.next(resized{wide, high})
			err = s.draw(s.board.text())
		}
		if err != nil {
			return usage("the terminal is gone: %w", err)
		}
		var m any
		select {
		case <-s.ctx.Done():
			return nil
		case <-resize.C:
			continue
		case m = <-s.results:
		case k, open := <-keys:
			if m = k; !open {
				return nil // the terminal has hung up
			}
		}
		if failed, panics := m.(panicked); panics {
			s.giveBack()
			panic(fmt.Sprintf("%v\n%s", failed.with, failed.stack))
		}
		var orders []any
		s.board, orders = s.board.next(m)
		for _, o := range orders {
			if o == (orderQuit{}) {
				return nil
			}
			s.carryOut(o)
		}
	}
}

// panicked is a bug that was met beside the screen.
type panicked struct {
	with  any
	stack []byte
}

// carryOut carries an order out, beside what is shown.
func (s *screen) carryOut(o any) {
	s.busy.Go(func() {
		defer func() {
			if with := recover(); with != nil {
				s.tell(panicked{with, debug.Stack()})
			}
		}()
		s.tell(s.do(o))
	})
}

func (s *screen) tell(m any) {
	select {
	case s.results <- m:
	case <-s.ctx.Done():
	}
}

// do carries an order out, and returns what it has led to.
func (s *screen) do(o any) any {
	switch o := o.(type) {
	case orderWait:
		timer := time.NewTimer(s.every)
		defer timer.Stop()
		select {
		case <-s.ctx.Done():
		case now := <-timer.C:
			return ticked{now}
		}
	case orderPoll:
		v, err := s.pollAll(s.ctx)
		return looked{v, err, o.more}
	case orderAbout:
		d, err := s.about(s.ctx, o.name)
		return knew{d, err, o.more}
	case orderNext:
		all, err := s.nexts(o.name)
		return found{o.name, all, err}
	case orderPreview:
		p, err := s.plan(o.request)
		if err != nil {
			return previewed{request: o.request, err: judge(err)}
		}
		would, err := s.previewed(s.ctx, p)
		return previewed{o.request, would, judge(err)}
	case orderMake:
		p, err := s.plan(o.request)
		if err == nil {
			_, err = s.done(s.ctx, p, &o.shown)
		}
		err = judge(err)
		if s.ctx.Err() != nil && exitOf(err) == exitUnknown {
			s.missed = err
		}
		return made{p, err}
	}
	return nil
}

func (s *screen) nexts(name string) ([]ops.Next, error) {
	o, err := s.operator(s.ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.bound(s.ctx)
	defer cancel()
	return o.Next(ctx, name)
}

func (s *screen) plan(r request) (plan, error) {
	o, err := s.operator(s.ctx)
	if err != nil {
		return plan{}, err
	}
	return r.change().plan(o, ops.By{Operator: s.who(), Reason: r.reason}), nil
}

// request is a change that somebody at the screen wants.
type request struct {
	verb     rune // p, r or s
	name     string
	position int64 // of the event to skip
	reason   string
}

func (r request) change() consumerChange {
	switch r.verb {
	case 'p':
		return pauseOf(r.name)
	case 'r':
		return resumeOf(r.name)
	}
	return skipOf(r.name, r.position)
}

func (r request) String() string {
	text := fmt.Sprintf("%s of %s", r.change().what, clean(r.name))
	if r.verb == 's' {
		text += fmt.Sprintf(", the event at %d", r.position)
	}
	return text
}
