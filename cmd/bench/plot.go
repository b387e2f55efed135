package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// The plot's measures, in pixels. Its colours are readable on white and on
// black.
const (
	plotLabels = 330 // width, left of the bars
	plotBars   = 320 // width of 100%
	plotRow    = 26
	plotBar    = 16
	plotWidth  = plotLabels + plotBars*13/10 + 60
)

// writePlot draws the ratios as bars, each with a mark where it should reach.
func (r *report) writePlot(w io.Writer) error {
	var b strings.Builder
	y := plotRow
	for _, l := range r.rows {
		if l.ratio == 0 {
			continue
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", plotLabels-8, y+plotBar-4, escaped(l.scenario+": "+l.part))
		length := int(min(l.ratio, 1.3) * plotBars)
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="#3f8fd2"/>`+"\n", plotLabels, y, length, plotBar)
		fmt.Fprintf(&b, `<text x="%d" y="%d">%.0f%%</text>`+"\n", plotLabels+length+8, y+plotBar-4, 100*l.ratio)
		if l.least > 0 {
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="3" height="%d" fill="#d9480f"/>`+"\n", plotLabels+int(l.least*plotBars), y-3, plotBar+6)
		}
		y += plotRow
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d">of what the control reached in the same run; the mark is the goal</text>`+"\n", plotLabels, y+plotBar)
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12" fill="#7d7d7d">
%s</svg>
`, plotWidth, y+2*plotRow, b.String())
	return err
}

func escaped(text string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(text)) // a buffer takes everything
	return b.String()
}

// plotName is where the plot of a page belongs.
func plotName(page string) string { return strings.TrimSuffix(page, ".md") + ".svg" }
