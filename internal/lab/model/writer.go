package main

// writer appends, rests, prepares, aborts.
func (s *S) writer(y Y, n int, stay string) {
	for i := 0; i < n; i++ {
		boot := s.boot
		s.nextID++
		t := &Tx{id: s.nextID, aggs: map[int]bool{}}
		gone := func() bool { return s.boot != boot }
		act := func() { s.scN++; t.sc = s.scN; t.idle = false; t.aborted = false }
		idl := func(aborted bool) { s.scN++; t.sc = s.scN; t.idle = true; t.aborted = aborted }
		k := 1 + s.r.Intn(4)
		long := s.r.Intn(5) == 0
		if stay != "" {
			k = 1
		} else if n > 6 {
			long = s.r.Intn(20) == 0
		}
		ok := true
		for j := 0; j < k && ok; j++ {
			act()
			y(struct{}{})
			if gone() {
				ok = false
				break
			}
			agg := s.r.Intn(len(s.d.heads))
			w := 0
			for s.aggLock[agg] != nil && s.aggLock[agg] != t && w < 30 {
				w++
				y(struct{}{})
				if gone() {
					break
				}
			}
			if gone() {
				ok = false
				break
			}
			if s.aggLock[agg] != nil && s.aggLock[agg] != t {
				idl(false)
				continue
			}
			s.aggLock[agg] = t
			t.aggs[agg] = true
			y(struct{}{})
			if gone() {
				ok = false
				break
			}
			s.holders[t.id] = t
			y(struct{}{})
			if gone() {
				ok = false
				break
			}
			s.seq++
			s.uid++
			ver := s.d.heads[agg] + 1
			for _, e := range t.draws {
				if e.agg == agg {
					ver = e.ver + 1
				}
			}
			sp := s.r.Intn(6) == 0
			if !sp {
				t.draws = append(t.draws, Ev{s.seq, agg, ver, s.uid})
			}
			s.log("tx%d draws %d agg%d v%d sp=%v", t.id, s.seq, agg, ver, sp)
			y(struct{}{})
			if gone() {
				ok = false
				break
			}
			idl(s.r.Intn(2) == 0)
			if long {
				for m := s.r.Intn(120); m > 0 && !gone(); m-- {
					y(struct{}{})
				}
			} else {
				y(struct{}{})
			}
		}
		if gone() {
			continue
		}
		stays := stay != "" && i > 0 && s.left == nil && s.holders[t.id] != nil
		if stays {
			s.left = t
			s.cov["stays "+stay]++
			if stay != "prepared" {
				act()
				y(struct{}{})
				for idl(stay == "aborted"); !s.relax && !gone(); {
					y(struct{}{})
				}
				s.left, s.relax = &Tx{}, true
				if gone() {
					continue
				}
			}
		}
		if stays && stay == "prepared" || !stays && s.r.Intn(8) == 0 && s.holders[t.id] != nil {
			t.prepared = true
			t.idle, t.aborted = false, false
			s.d.prep[t.id] = t
			s.wal()
			s.log("tx%d prepared", t.id)
			boot = -1
			for m := s.r.Intn(100); m > 0; m-- {
				y(struct{}{})
			}
			if s.left == t {
				for !s.relax && s.d.prep[t.id] != nil {
					y(struct{}{})
				}
				s.left, s.relax = &Tx{}, true
			}
			if s.d.prep[t.id] == nil {
				continue
			} // lost in async crash
		} else {
			act()
			y(struct{}{})
			if gone() {
				continue
			}
		}
		commit := s.r.Intn(10) < 7
		if commit {
			for _, e := range t.draws {
				s.d.events[e.pos] = e
				s.d.heads[e.agg] = e.ver
			}
			delete(s.d.prep, t.id)
			s.log("tx%d visible %v", t.id, t.draws)
			s.wal()
			b2 := s.boot
			y(struct{}{})
			if s.boot != b2 {
				continue
			}
		} else {
			delete(s.d.prep, t.id)
			s.log("tx%d rollback", t.id)
			s.wal()
		}
		delete(s.holders, t.id)
		for a := range t.aggs {
			if s.aggLock[a] == t {
				delete(s.aggLock, a)
			}
		}
		s.log("tx%d released", t.id)
	}
}
