//go:build unix

package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/pgfrontier/worker/sim"
	"github.com/pgfrontier/worker/sim/history"
)

// WorkerArgument, as its only one, makes a program that calls Worker then a
// worker process.
const WorkerArgument = "worker"

// Worker is the main function of a worker process, and returns its exit
// status. Its role comes on standard input, as JSON; each line after that orders
// a handler to break the rules. What happens to it goes to standard output as
// records of the history, one to a line. It stops at SIGTERM. Its input ends when
// its parent does: then it ends at once.
func Worker() int {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	var role sim.Role
	if err == nil {
		err = json.Unmarshal(line, &role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos: a worker process is started by chaos only, which gives it its role:", err)
		return exitStatus
	}
	orders := make(chan struct{}, 1)
	go func() {
		for {
			if _, err := in.ReadBytes('\n'); err != nil {
				os.Exit(exitStatus)
			}
			orders <- struct{}{}
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	out := json.NewEncoder(os.Stdout)
	err = role.Run(ctx, orders, func(r history.Record) {
		_ = out.Encode(r) // nobody listens any more when the parent ends, and so does this
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitStatus
	}
	return 0
}

// exitStatus is that of a worker process that failed.
const exitStatus = 1
