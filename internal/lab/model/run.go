package main

import (
	"iter"
	"math/rand"
)

// run plays one interleaving.
func run(seed int64, v V, tr bool) *S {
	r := rand.New(rand.NewSource(seed))
	nc, nw, na, nwr := 2, 2, 3, 4
	s := &S{r: r, v: v, rowLock: make([]int, nc), chaos: true, tr: tr, cov: map[string]int{}, maxOpen: 40}
	s.thr = 20 + r.Intn(150)
	s.async = v["async"]
	s.up(&Srv{}, &DB{events: map[int]Ev{}, heads: make([]int, na), cp: make([]int, nc), rev: make([]int, nc), owner: make([]int, nc), prep: map[int]*Tx{}, ledger: make([][]Ev, nc)}, inc{s.next(), s.next()})
	for c := 0; c < nc; c++ {
		s.d.open = append(s.d.open, map[int]bool{})
		s.d.audit = append(s.d.audit, map[int]byte{})
		s.d.owner[c] = c % nw
	}
	s.wal()
	type actor struct {
		next     func() (struct{}, bool)
		stop     func()
		done, wr bool
		name     string
	}
	var as []*actor
	add := func(name string, wr bool, fn func(Y)) {
		n, st := iter.Pull(iter.Seq[struct{}](func(y func(struct{}) bool) {
			fn(func(x struct{}) bool {
				if !y(x) {
					panic(stopped{})
				}
				return true
			})
		}))
		as = append(as, &actor{next: n, stop: st, wr: wr, name: name})
	}
	s.v = V{}
	for x := range v { // not every fault in every run
		s.v[x] = true
	}
	for _, x := range []string{"crash", "reset", "split", "cold", "stay"} {
		if r.Intn(2) == 0 {
			delete(s.v, x)
		}
	}
	stay, nt, stays := "", 6, 0
	if s.v["stay"] {
		if k := r.Intn(18); k < 3 {
			stay, nt, stays = []string{"idle", "aborted", "prepared"}[k], 24, 1
		}
	}
	for i := 0; i < nwr; i++ {
		if i == 0 {
			add("wr", true, func(y Y) { s.writer(y, 6, stay) })
			continue
		}
		add("wr", true, func(y Y) { s.writer(y, nt, "") })
	}
	for w := 0; w < nw; w++ {
		f := &F{w: w}
		s.fr = append(s.fr, f)
		add("fr", false, func(y Y) { s.frontier(y, f) })
		for c := 0; c < nc; c++ {
			add("co", false, func(y Y) { s.consumer(y, f, c) })
		}
	}
	add("ch", false, func(y Y) { s.chaosActor(y) })
	defer func() {
		for _, a := range as {
			func() { defer func() { recover() }(); a.stop() }()
		}
	}()
	wleft := nwr
	// speeds differ per run
	wt := make([]int, len(as))
	tot := 0
	for i := range wt {
		wt[i] = 1 + r.Intn(6)
		tot += wt[i]
	}
	quiet := 0
	for s.steps = 0; s.steps < 60000+60000*stays && len(s.viol) == 0; s.steps++ {
		k := r.Intn(tot)
		i := 0
		for k >= wt[i] {
			k -= wt[i]
			i++
		}
		a := as[i]
		if a.done {
			continue
		}
		if _, ok := a.next(); !ok {
			a.done = true
			if a.wr {
				wleft--
			}
		}
		stay := s.left != nil && !s.relax
		s.chaos = wleft > 0 && s.left == nil
		if wleft == 0 || stay && wleft == 1 {
			quiet++
		}
		if stay && quiet > 0 && quiet%500 == 0 && s.handled() {
			s.relax = true
		}
		if quiet > 0 && quiet%500 == 0 && s.final() {
			break
		}
	}
	if len(s.viol) == 0 && !s.final() {
		for c := range s.d.cp {
			got := map[int]bool{}
			for _, e := range s.d.ledger[c] {
				got[e.uid] = true
			}
			for p, e := range s.d.events {
				if !got[e.uid] {
					if p <= s.d.cp[c] {
						s.bad("LOST c%d pos%d", c, p)
					} else if s.left != nil && !s.relax {
						s.bad("STALL c%d handled %d of %d, open %d", c, len(s.d.ledger[c]), len(s.d.events), len(s.d.open[c]))
						break
					} else {
						s.bad("STUCK c%d pos%d cp %d safe %v", c, p, s.d.cp[c], s.fr[s.d.owner[c]].safe)
					}
				}
			}
			for m := 1; m <= s.d.cp[c]; m++ {
				if _, ok := s.d.events[m]; !ok {
					if a := s.d.audit[c][m]; a == 0 {
						s.bad("UNAUDITED c%d pos%d", c, m)
					} else if a == 'o' && (s.left == nil || s.relax) {
						s.bad("OPEN FOREVER c%d pos%d", c, m)
					}
				}
			}
		}
	}
	return s
}

type stopped struct{}

func (s *S) handled() bool {
	for c := range s.d.cp {
		if len(s.d.ledger[c]) != len(s.d.events) {
			return false
		}
	}
	return true
}

func (s *S) final() bool {
	if len(s.holders) > 0 {
		return false
	}
	for c := range s.d.cp {
		if len(s.d.ledger[c]) != len(s.d.events) || len(s.d.open[c]) > 0 {
			return false
		}
		for m := 1; m <= s.d.cp[c]; m++ {
			if _, ok := s.d.events[m]; !ok {
				if a := s.d.audit[c][m]; a == 0 || a == 'o' {
					return false
				}
			}
		}
	}
	return true
}
