package arrival

import (
	"testing"

	"pgregory.net/rapid"
)

// A caller is released as soon as the consumer reaches its position, and not before. The
// caller is in this process, or in another process that has sent a request. Nothing is kept
// of released callers.
func TestAwaitedReleasesCallers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := NewCallers()
		at := int64(0)
		here, elsewhere := map[chan struct{}]int64{}, map[int64]bool{}
		position := rapid.Int64Range(1, 20)
		t.Repeat(map[string]func(*rapid.T){
			"wait": func(t *rapid.T) {
				p := position.Draw(t, "position") + at
				there, _ := a.Wait("c", p)
				here[there] = p
			},
			"forget": func(*rapid.T) {
				_, forget := a.Wait("c", at+1)
				forget()
				forget()
			},
			"ask": func(t *rapid.T) {
				p := position.Draw(t, "position") + at - 5
				a.Request("c", p, func() int64 { return at })
				elsewhere[p] = true
			},
			"advance": func(t *rapid.T) {
				at += position.Draw(t, "by")
				a.Advanced("c", at)
				a.Advanced("another", at+100)
			},
			"again": func(*rapid.T) {
				a.ReleaseAll()
				for there := range here {
					<-there
				}
				clear(here)
			},
			"": func(t *rapid.T) {
				for there, p := range here {
					select {
					case <-there:
						if p > at {
							t.Fatalf("released position %d at %d", p, at)
						}
						delete(here, there)
					default:
						if p <= at {
							t.Fatalf("not released position %d at %d", p, at)
						}
					}
				}
				due, answered := a.TakeReplies()["c"]
				for p := range elsewhere {
					if p > at {
						continue
					}
					if !answered || due < p {
						t.Fatalf("position %d was asked for, and not answered at %d", p, at)
					}
					delete(elsewhere, p)
				}
				after := at + rapid.Int64Range(-5, 20).Draw(t, "after")
				upTo, among := after+rapid.Int64Range(0, 10).Draw(t, "width"), false
				for _, p := range here {
					among = among || after < p && p <= upTo
				}
				for p := range elsewhere {
					among = among || after < p && p <= upTo
				}
				if a.IsWaitedFor("c", after, upTo) != among {
					t.Fatalf("waited for in (%d, %d]: %v, waiting are %v and %v", after, upTo, !among, here, elsewhere)
				}
				if len(a.waiters["c"]) != len(here) || len(a.requests["c"]) != len(elsewhere) || len(a.waiters) > 1 {
					t.Fatalf("kept %v and %v, waiting are %v and %v", a.waiters, a.requests, here, elsewhere)
				}
			},
		})
	})
}
