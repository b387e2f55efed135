package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/pgfrontier/worker/sim/bundle"
	"github.com/pgfrontier/worker/sim/oracle"
)

// check judges a run that was kept. It says so if the findings are not those
// that were kept with it.
func check(o options, stdout, stderr io.Writer) ([]*oracle.Report, error) {
	r, err := bundle.Load(o.check)
	if err != nil {
		return nil, err
	}
	verdict, before := r.Verdict, findings(r)
	r.Judge(r.Evidence)
	if !o.json {
		err = r.WriteText(stdout)
	}
	if !bytes.Equal(before, findings(r)) {
		fmt.Fprintf(stderr, "This is not what was found when the run was kept:\n  %s\n", verdict)
	}
	return []*oracle.Report{r}, err
}

func findings(r *oracle.Report) []byte {
	text, _ := json.Marshal(r.Invariants) // numbers and strings: never fails
	return text
}
