package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/pgfrontier/worker/sim/oracle"
)

// files are those that a report goes into.
type files []file

// files creates the files that are asked for, so that one which cannot be
// written is found out before the runs.
func (o options) files() (all files, err error) {
	for _, f := range []file{
		{flag: "-history", path: o.history, write: func(r *oracle.Report, w io.Writer) error { return r.Evidence.History.WriteJSONLines(w) }},
		{flag: "-report", path: o.report, write: (*oracle.Report).WritePicture},
	} {
		if f.path == "" {
			continue
		}
		if f.File, err = os.Create(f.path); err != nil {
			return nil, errors.Join(fmt.Errorf("sim: %s: %w", f.flag, err), all.write(nil))
		}
		all = append(all, f)
	}
	return all, nil
}

// write writes and closes them.
func (all files) write(reports []*oracle.Report) (err error) {
	for _, f := range all {
		err = errors.Join(err, f.put(telling(reports)))
	}
	return err
}

// file is one that a report goes into.
type file struct {
	*os.File
	flag, path string
	write      func(*oracle.Report, io.Writer) error
}

func (f file) put(r *oracle.Report) (err error) {
	if r != nil {
		w := bufio.NewWriter(f)
		err = errors.Join(f.write(r, w), w.Flush())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("sim: %s: %w", f.flag, err)
	}
	return nil
}

// telling is the report worth looking at: the first that broke, or the last.
func telling(reports []*oracle.Report) *oracle.Report {
	for _, r := range reports {
		if !r.Held && !r.Interrupted {
			return r
		}
	}
	if len(reports) == 0 {
		return nil
	}
	return reports[len(reports)-1]
}
