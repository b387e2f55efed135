package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/pgfrontier/worker/internal/pgdriver"
)

const (
	maxViewers  = 200
	sampleEvery = 2 * time.Second
	endLimit    = 10 * time.Second // for a driver that ignores the end of a context
)

// sample is a snapshot, or why there is none.
type sample struct {
	snapshot *snapshot
	err      error

	mu    sync.Mutex
	drawn map[string][]byte // fragments by page, shared by the viewers of the page
}

// sampler reads snapshots for all viewers. It reads while there are viewers: the first one
// starts its goroutine, and the last one that leaves ends it and waits for it.
type sampler struct {
	look func(context.Context) (*snapshot, error)

	history *history

	mu      sync.Mutex
	closed  bool
	viewers map[chan *sample]bool
	latest  *sample // of this goroutine
	cancel  context.CancelFunc
	ended   chan struct{} // when the goroutine has ended
	streams sync.WaitGroup
}

var (
	errClosed  = errors.New("the sampler is closed")
	errTooMany = &refusal{http.StatusServiceUnavailable, fmt.Sprintf("%d pages are kept up to date already, which is all that the console does at once. This one is not: load it again to see how it stands.", maxViewers)}
)

// join adds a viewer. The viewer gets each sample until leave, or only the latest if it is slow.
// The channel is closed with the sampler.
func (s *sampler) join() (samples chan *sample, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, nil, errClosed
	case len(s.viewers) == maxViewers:
		return nil, nil, errTooMany
	}
	samples = make(chan *sample, 1)
	if len(s.viewers) == 0 {
		s.begin()
	} else if s.latest != nil {
		samples <- s.latest
	}
	s.viewers[samples] = true
	s.streams.Add(1)
	return samples, func() { s.leave(samples) }, nil
}

func (s *sampler) begin() {
	// A goroutine that is on its way out may still hold a connection.
	before, ended := s.ended, make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	s.viewers, s.latest, s.cancel, s.ended = map[chan *sample]bool{}, nil, cancel, ended
	go func() {
		defer close(ended)
		if before != nil {
			select {
			case <-before:
			case <-ctx.Done():
			}
		}
		s.run(ctx)
	}()
}

func (s *sampler) leave(samples chan *sample) {
	defer s.streams.Done()
	s.mu.Lock()
	delete(s.viewers, samples)
	ended := s.ended
	last := len(s.viewers) == 0
	if last {
		s.cancel()
	}
	s.mu.Unlock()
	if last {
		select {
		case <-ended:
		case <-time.After(endLimit):
		}
	}
}

// run reads until the last viewer has left.
func (s *sampler) run(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, readLimit)
		snapshot, err := s.look(limited)
		if err != nil {
			err = pgdriver.CutOff(limited, err)
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			s.history.add(snapshot.Consumers, time.Now())
		}
		s.publish(ctx, &sample{snapshot: snapshot, err: err})
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (s *sampler) publish(ctx context.Context, latest *sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return // the viewers have another goroutine by now
	}
	s.latest = latest
	for samples := range s.viewers {
		select {
		case <-samples: // the viewer has not taken the latest sample
		default:
		}
		samples <- latest
	}
}

// close ends all streams and waits for them.
func (s *sampler) close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		for samples := range s.viewers {
			close(samples)
		}
		if s.cancel != nil {
			s.cancel()
		}
	}
	s.mu.Unlock()
	s.streams.Wait()
}
