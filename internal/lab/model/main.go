// Command model searches random interleavings of the protocol (package frontier,
// the batch and its guard) for a lost, doubled, misordered or unaudited event.
// Every step between two yields is one atomic step: a draw, a commit becoming
// visible, a lock release, a scan, a read, a guard. It is terse on purpose, and
// no part of the library: a change of the protocol is tried here first, and the
// library's own tests drive its real state machine.
//
//	go run ./internal/lab/model -d 60s                  the protocol as designed: expect violating=0
//	go run ./internal/lab/model -d 60s -v base,async    with asynchronous commit
//	go run ./internal/lab/model -d 10s -v base,xNoRev   a mistake: expect violations
//	go run ./internal/lab/model -one -seed N -v ...     one run, traced
//
// Base are the faults, each in some of the runs: crash (of a backend, or of all
// of the server), reset, split (a lagging standby, and promotions or restores
// that leave the old primary alone: reads and frontiers may get there), cold (a
// copy made at rest is put back) and stay (one transaction stays open until
// everything else is handled: MaxOpenRanges must not stop the consumers).
//
// A server shows an incarnation: the token in the row, which recovery and
// promotion empty, and the start time of the process. Each read returns it,
// read after the rows and on the same server; a standby shows none. Reads under
// another one than the Value's are thrown away. The guard compares it on the
// real primary.
//
// Mistakes: xNoRev (guard compares the position only), xCacheL, xLbefore,
// xLhead (narrowing by a stale L, an early L, the visible head), xNoPrep
// (holders without pid ignored), xBackward (checkpoint may fall), xResetKeeps
// (reset keeps open ranges), xSpansAfter (doubts captured after the rows),
// xFrontierList (visible rows recorded as open), xCloseOnAnyFence (void by a
// fence that never waited for the stale holders).
// Of incarnations: xReadNoToken (reads are not tied to one; xRowsNoToken: of
// events only), xReadOtherConn (read on another connection than the rows),
// xTokenRestored (the token without the start time), xBackendCrash with async
// (the start time without the token), xRaiseAny with async (the settled row is
// raised under any).
// Of rest: xPrepEarly (a prepared holder narrowed by an L read before the scan
// that shows it so), xAbortedOver (an aborted one taken for one that never draws
// again), xPrepWide, xAbortedWide (these are not narrowed: a stall).
// Found harmless: xLoadNoToken (progress from any server: position and revision
// are compared on the primary), xNoLast (the guard does not ask whether the
// position is above the sequence's last value).
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

func main() {
	vs := flag.String("v", "base", "variants, comma separated")
	seed := flag.Int64("seed", 1, "")
	d := flag.Duration("d", 10*time.Second, "")
	one := flag.Bool("one", false, "")
	flag.Parse()
	debug.SetGCPercent(400)
	v := V{}
	for _, x := range strings.Split(*vs, ",") {
		if x == "base" {
			for _, x := range []string{"unified", "settled", "crash", "reset", "split", "cold", "stay"} {
				v[x] = true
			}
		} else if x != "" {
			v[x] = true
		}
	}
	if *one {
		s := run(*seed, v, true)
		for _, l := range s.trace {
			fmt.Println(l)
		}
		fmt.Println(s.viol)
		return
	}
	t0 := time.Now()
	n, nv, steps := 0, 0, 0
	kinds := map[string]int{}
	cov := map[string]int{}
	first := int64(0)
	for i := *seed; time.Since(t0) < *d; i++ {
		s := run(i, v, false)
		n++
		steps += s.steps
		for k, x := range s.cov {
			cov[k] += x
		}
		if len(s.viol) > 0 {
			nv++
			kinds[strings.Fields(s.viol[0])[0]]++
			if first == 0 {
				first = i
				fmt.Println("first", i, s.viol)
			}
		}
	}
	fmt.Printf("v=%q runs=%d steps=%d violating=%d %v first=%d cov=%v\n", *vs, n, steps, nv, kinds, first, cov)
	if nv > 0 {
		os.Exit(1)
	}
}
