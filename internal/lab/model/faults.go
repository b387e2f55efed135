package main

// chaosActor does to servers and workers what faults do.
func (s *S) chaosActor(y Y) {
	for {
		for k := 5 + s.r.Intn(40); k > 0; k-- {
			y(struct{}{})
		}
		if !s.chaos { // orphans: prepared transactions that came back after an async crash
			for id, t := range s.d.prep {
				if t == s.left {
					continue
				}
				if s.r.Intn(2) == 0 {
					for _, e := range t.draws {
						s.d.events[e.pos] = e
						s.d.heads[e.agg] = e.ver
					}
				}
				delete(s.d.prep, id)
				y(struct{}{})
				delete(s.holders, id)
				for a := range t.aggs {
					if s.aggLock[a] == t {
						delete(s.aggLock, a)
					}
				}
			}
			continue
		}
		c := s.r.Intn(len(s.d.cp))
		switch p := s.r.Intn(10); {
		case p < 6:
			s.d.owner[c] = s.r.Intn(len(s.fr))
			s.wal()
			s.cov["owner change"]++
			s.log("owner c%d=w%d", c, s.d.owner[c])
		case p < 7 && s.v["reset"]:
			if s.rowLock[c] != 0 {
				continue
			}
			P := s.r.Intn(s.d.cp[c] + 1)
			s.d.cp[c] = P
			s.d.rev[c]++
			var l []Ev
			for _, e := range s.d.ledger[c] {
				if e.pos <= P {
					l = append(l, e)
				}
			}
			s.d.ledger[c] = l
			if !s.v["xResetKeeps"] {
				for m := range s.d.open[c] {
					if m > P {
						delete(s.d.open[c], m)
					}
				}
			}
			for m := range s.d.audit[c] {
				if m > P {
					delete(s.d.audit[c], m)
				}
			}
			s.cov["reset"]++
			s.log("reset c%d to %d", c, P)
			s.wal()
		case p < 8 && s.v["crash"] && len(s.hist) > 0:
			s.crash()
		case p < 10 && s.v["cold"]:
			s.cold()
		}
	}
}
