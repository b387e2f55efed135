package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// lines returns the lines of the folders' files, and those of them that are neither empty nor a
// comment.
func lines(root string, fs []*folder) (all, code int, err error) {
	for _, f := range fs {
		for _, name := range f.names {
			text, err := os.ReadFile(filepath.Join(root, f.dir, name))
			if err != nil {
				return 0, 0, fmt.Errorf("gauges: %w", err)
			}
			for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
				all++
				if line := strings.TrimSpace(s.Text()); line != "" && !strings.HasPrefix(line, "//") {
					code++
				}
			}
		}
	}
	return all, code, nil
}

// words counts the words of README.md, of the pages of docs and of the documentation of packages.
func words(root string, fs []*folder) (n int, err error) {
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		return 0, fmt.Errorf("gauges: %w", err)
	}
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			return 0, fmt.Errorf("gauges: %w", err)
		}
		n += len(strings.Fields(string(text)))
	}
	for _, f := range fs {
		for _, file := range f.files {
			n += len(strings.Fields(file.Doc.Text()))
		}
	}
	return n, nil
}

// atTop counts the Go files of the root, tests included.
func atTop(root string) (int, error) {
	files, err := filepath.Glob(filepath.Join(root, "*.go"))
	return len(files), err
}
