package bundle

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/pgfrontier/worker/sim/oracle"
)

// Files are single files to which a report is written on request: its history as JSON lines, and
// its picture.
type Files []file

type file struct {
	*os.File
	flag  string
	write func(*oracle.Report, io.Writer) error
}

// Create creates the files whose paths are not empty. A file that cannot be written is thus
// detected before the run. The caller must Write the files.
func Create(history, picture string) (all Files, err error) {
	for _, f := range []struct {
		flag, path string
		write      func(*oracle.Report, io.Writer) error
	}{
		{"-history", history, func(r *oracle.Report, w io.Writer) error { return r.Evidence.History.WriteJSONLines(w) }},
		{"-report", picture, (*oracle.Report).WritePicture},
	} {
		if f.path == "" {
			continue
		}
		created, err := os.Create(f.path)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", f.flag, err), all.Write(nil))
		}
		all = append(all, file{created, f.flag, f.write})
	}
	return all, nil
}

// Write writes a report into the files, unless it is nil, and closes them.
func (all Files) Write(r *oracle.Report) (err error) {
	for _, f := range all {
		err = errors.Join(err, f.put(r))
	}
	return err
}

func (f file) put(r *oracle.Report) (err error) {
	if r != nil {
		w := bufio.NewWriter(f)
		err = errors.Join(f.write(r, w), w.Flush())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", f.flag, err)
	}
	return nil
}
