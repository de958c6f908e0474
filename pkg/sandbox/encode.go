package sandbox

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"unicode/utf8"
)

// streamedOutput is the size from which an output is encoded while the document is written, and not before.
const streamedOutput = 64 << 10

// JSON is the encoded form of a result. Large outputs stay where they are and are encoded while the document is written.
// It can be written until the result is closed.
type JSON struct {
	pieces []piece
}

// piece is literal text, or an output that becomes the inside of a JSON string.
type piece struct {
	text   []byte
	out    Output
	base64 bool
	size   int64
}

// NewJSON wraps a document that is already encoded.
func NewJSON(text []byte) *JSON { return &JSON{[]piece{{text: text, size: int64(len(text))}}} }

// Encode encodes the result, or a value that contains it: value gets the document and returns the value to encode.
func (r *Result) Encode(value func(Document) any) (*JSON, error) {
	var marks []string
	var large []piece
	mark := func(o Output) (text, encoding string, err error) {
		if o.Len() <= streamedOutput {
			text, encoding = EncodeText(o.Bytes())
			return text, encoding, nil
		}
		p := piece{out: o}
		if err := p.measure(); err != nil {
			return "", "", err
		}
		if p.base64 {
			encoding = "base64"
		}
		marks, large = append(marks, rand.Text()), append(large, p)
		return marks[len(marks)-1], encoding, nil
	}
	d := r.outline()
	var err error
	if d.Stdout, d.StdoutEncoding, err = mark(r.Stdout); err != nil {
		return nil, err
	}
	if d.Stderr, d.StderrEncoding, err = mark(r.Stderr); err != nil {
		return nil, err
	}
	text, err := json.Marshal(value(d))
	if err != nil {
		return nil, err
	}
	return split(text, marks, large), nil
}

// split puts the pieces in the places of their marks.
func split(text []byte, marks []string, large []piece) *JSON {
	j := &JSON{}
	for i, m := range marks {
		before, after, _ := bytes.Cut(text, []byte(m))
		j.pieces = append(j.pieces, piece{text: before, size: int64(len(before))}, large[i])
		text = after
	}
	j.pieces = append(j.pieces, piece{text: text, size: int64(len(text))})
	return j
}

// Size is the number of bytes that WriteTo writes.
func (j *JSON) Size() (n int64) {
	for i := range j.pieces {
		n += j.pieces[i].size
	}
	return n
}

// Memory is the approximate number of bytes in memory.
func (j *JSON) Memory() (n int) {
	for i := range j.pieces {
		n += len(j.pieces[i].text)
		if j.pieces[i].out.Total > 0 {
			n += int(min(Size(j.pieces[i].out.Len()), OutputMemory))
		}
	}
	return n
}

// Spans lists the outputs that are encoded while the document is written: offset and length of each.
func (j *JSON) Spans() (spans [][2]int64) {
	var at int64
	for i := range j.pieces {
		if p := &j.pieces[i]; p.out.Total > 0 {
			spans = append(spans, [2]int64{at, p.size})
		}
		at += j.pieces[i].size
	}
	return spans
}

// Bytes returns the whole document in memory.
func (j *JSON) Bytes() ([]byte, error) {
	if len(j.pieces) == 1 {
		return j.pieces[0].text, nil
	}
	b := bytes.NewBuffer(make([]byte, 0, j.Size()))
	_, err := j.WriteTo(b)
	return b.Bytes(), err
}

// WriteTo writes the document, without a newline. It may be called again, and from several goroutines.
func (j *JSON) WriteTo(w io.Writer) (int64, error) {
	counted := &countingWriter{to: w}
	for i := range j.pieces {
		if err := j.pieces[i].writeTo(counted); err != nil {
			return counted.n, err
		}
	}
	return counted.n, nil
}

func (p *piece) writeTo(w io.Writer) error {
	if p.out.Total == 0 {
		_, err := w.Write(p.text)
		return err
	}
	return p.encode(w, func(text string) ([]byte, error) { return json.Marshal(text) })
}

// encode writes the inside of the string, with text encoded in pieces by marshal.
func (p *piece) encode(w io.Writer, marshal func(string) ([]byte, error)) error {
	buffered := bufio.NewWriterSize(w, 32<<10)
	var err error
	if p.base64 {
		encoder := base64.NewEncoder(base64.StdEncoding, buffered)
		if err = p.out.writeTo(encoder, 0); err == nil {
			err = encoder.Close()
		}
	} else {
		err = p.out.writeTo(&runes{to: func(text []byte) error {
			encoded, err := marshal(string(text))
			if err == nil {
				_, err = buffered.Write(encoded[1 : len(encoded)-1])
			}
			return err
		}}, 0)
	}
	if err != nil {
		return err
	}
	return buffered.Flush()
}

// LargeOutput is an output that is encoded when its document is written.
type LargeOutput struct {
	Output
	Mark  string // stands in its place in the outline
	piece *piece
}

// EncodeWith writes the inside of the JSON string that the output becomes. marshal encodes a piece of text as a JSON string.
func (l *LargeOutput) EncodeWith(w io.Writer, marshal func(text string) ([]byte, error)) error {
	return l.piece.encode(w, marshal)
}

// Outline is the document with marks in place of large outputs.
func (j *JSON) Outline() (text []byte, large []LargeOutput) {
	for i := range j.pieces {
		p := &j.pieces[i]
		if p.out.Total > 0 {
			large = append(large, LargeOutput{p.out, rand.Text(), p})
			text = append(text, large[len(large)-1].Mark...)
		}
		text = append(text, p.text...)
	}
	return text, large
}

// measure determines the encoding of an output and its encoded length.
func (p *piece) measure() error {
	check := &runes{to: func(text []byte) error {
		if !utf8.Valid(text) {
			return errNotText
		}
		p.size += escapedLen(text)
		return nil
	}}
	err := p.out.writeTo(check, 0)
	if err == errNotText || err == nil && len(check.rest) > 0 { //nolint:errorlint // the writer returns it unwrapped
		p.base64, p.size, err = true, int64(base64.StdEncoding.EncodedLen(int(p.out.Len()))), nil
	}
	return err
}

var errNotText = &Error{Op: "output", Kind: ErrInvalid}

// runes passes text on in pieces that end at a character boundary, as far as the text is UTF-8.
type runes struct {
	to   func([]byte) error
	rest []byte // the beginning of a character
}

func (r *runes) Write(p []byte) (int, error) {
	const most = 32 << 10
	for text := p; len(text) > 0; {
		part := text[:min(most, len(text))]
		text = text[len(part):]
		if len(r.rest) > 0 {
			part = append(r.rest, part...)
			r.rest = nil
		}
		end := len(part)
		for i := end - 1; i >= max(0, end-utf8.UTFMax); i-- {
			if utf8.RuneStart(part[i]) {
				if !utf8.FullRune(part[i:]) {
					end = i
				}
				break
			}
		}
		r.rest = append(r.rest, part[end:]...)
		if end > 0 {
			if err := r.to(part[:end]); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

// escapedLen is the length that encoding/json gives a text, without its quotes.
func escapedLen(text []byte) (n int64) {
	n = int64(len(text))
	for i, c := range text {
		switch {
		case c == '"', c == '\\', c == '\b', c == '\f', c == '\n', c == '\r', c == '\t':
			n++
		case c < ' ', c == '<', c == '>', c == '&':
			n += 5
		case c == 0xE2 && text[i+1] == 0x80 && text[i+2]&^1 == 0xA8: // U+2028 and U+2029
			n += 3
		}
	}
	return n
}
