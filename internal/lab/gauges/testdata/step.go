package worker

// Max is the most steps.
const Max = 3

const update = `UPDATE a
SET b = b + 1
WHERE c`

// step calls upwards once: more stands in the other file, with run.
func (l *consumerLoop) step() {
	if l.more() && unseen == nil {
		l.left--
	}
}

var unseen []string

// Statement returns SQL.
func Statement() string {
	return update
}
