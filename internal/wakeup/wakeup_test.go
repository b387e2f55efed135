package wakeup

import (
	"context"
	"testing"
	"time"
)

func TestSendEndsAPause(t *testing.T) {
	s := New()
	for range 1000 {
		s.Send() // never blocks
	}
	if woken, ok := s.Sleep(t.Context(), time.Hour); !woken || !ok {
		t.Errorf("a pause after Send: woken %v, ok %v", woken, ok)
	}
	if woken, ok := s.Sleep(t.Context(), time.Millisecond); woken || !ok {
		t.Errorf("a thousand wakeups are more than one: woken %v, ok %v", woken, ok)
	}
	slept := make(chan bool)
	go func() {
		woken, _ := s.Sleep(context.Background(), time.Hour)
		slept <- woken
	}()
	s.Send()
	if !<-slept {
		t.Error("the pause did not end with the wakeup")
	}
}

// However often Send is called, the ends of pauses are at least apart from each other.
func TestWakeupsHaveMinimumDistance(t *testing.T) {
	s := New()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			s.Send()
		}
	}()
	var last time.Time
	for range 5 {
		if woken, ok := s.Sleep(ctx, time.Hour); !woken || !ok {
			t.Fatalf("woken %v, ok %v", woken, ok)
		}
		if now := time.Now(); now.Sub(last) < apart {
			t.Fatalf("two wakeups within %v", now.Sub(last))
		} else {
			last = now
		}
	}
	cancel()
	<-stopped
}

func TestContextEndsAPause(t *testing.T) {
	s := New()
	ctx, cancel := context.WithCancel(t.Context())
	s.Send()
	s.Sleep(ctx, 0)
	s.Send()
	cancel()
	if _, ok := s.Sleep(ctx, time.Hour); ok {
		t.Error("a pause that must last goes on after its context")
	}
	if _, ok := s.Sleep(ctx, time.Hour); ok {
		t.Error("a pause goes on after its context")
	}
}
