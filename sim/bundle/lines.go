package bundle

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/pgfrontier/worker/sim/history"
)

// linesOf is a part that is a list.
func linesOf[T any](file, holds string, list func(*history.Evidence) *[]T) part {
	return part{file, holds,
		func(e *history.Evidence, to *json.Encoder) (int, error) {
			for _, v := range *list(e) {
				if err := to.Encode(v); err != nil {
					return 0, err
				}
			}
			return len(*list(e)), nil
		},
		func(e *history.Evidence, from *reader) (_ int, err error) {
			*list(e), err = all[T](from)
			return from.line, err
		},
	}
}

func writeHistory(e *history.Evidence, to *json.Encoder) (int, error) {
	records := e.History.Records()
	for _, r := range records {
		if err := to.Encode(r); err != nil {
			return 0, err
		}
	}
	return len(records), nil
}

func readHistory(e *history.Evidence, from *reader) (int, error) {
	records, err := all[history.Record](from)
	e.History = history.Of(records)
	return from.line, err
}

// reader reads a file line by line.
type reader struct {
	file *os.File
	text *bufio.Reader
	line int // that was read last, from 1
}

func open(file string) (*reader, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	return &reader{file: f, text: bufio.NewReader(f)}, nil
}

// all reads an object from each line.
func all[T any](r *reader) (list []T, err error) {
	for {
		text, err := r.text.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(text) == 0 {
			return list, nil
		}
		r.line++
		var v T
		switch {
		case errors.Is(err, io.EOF):
			err = fmt.Errorf("the line has no end: the file was cut off")
		case err == nil:
			err = json.Unmarshal(text, &v)
		}
		if err != nil {
			return nil, fmt.Errorf("sim: %s:%d: %w", r.file.Name(), r.line, err)
		}
		list = append(list, v)
	}
}
