package wire

import "encoding/json"

// Subprotocol is the protocol that a WebSocket client of /v1/runs/{id}/ws has to offer. All messages are JSON texts.
//
//	client → server   {"type":"stdin","data":"…","encoding":"base64"}    bytes for standard input; encoding is left out for text
//	                  {"type":"stdin_close"}                             its end
//	                  {"type":"signal","signal":"SIGINT"}                for the program
//	                  {"type":"resize","rows":24,"cols":80}              of its terminal
//	                  {"type":"cancel"}                                  end the run: SIGTERM, or SIGINT with "signal":"SIGINT"
//	                  {"type":"input","data":"…"}                        a cell: the line that its input event asks for
//	                  {"type":"input_end"}                               a cell: there is no more input
//	server → client   {"seq":…,"kind":…,…}                               each event, as --format ndjson prints it; the last has kind "result"
//	                  {"kind":"error","problem":{…}}                     in place of the result: the reason, or why a message was refused
//	                  {"kind":"ack","bytes":N}                           so many bytes of stdin were taken in all
//
// The server sends the events from ?from=SEQ on, by default all that it has kept. A client that does not read stops the program,
// as a full pipe does. A client that sends stdin faster than the program reads has to wait: the server reads on once it has room.
//
// The server closes with 1000 after the last event, 1001 when it drains, 1008 after a protocol error, and 1011 after an internal
// error.
const Subprotocol = "sandbox-run.v1"

// The types of messages from clients.
const (
	MessageStdin      = "stdin"
	MessageStdinClose = "stdin_close"
	MessageSignal     = "signal"
	MessageResize     = "resize"
	MessageCancel     = "cancel"
	MessageInput      = "input"
	MessageInputEnd   = "input_end"
)

// SignalInterrupt is the signal of a cancel message after a Ctrl-C.
const SignalInterrupt = "SIGINT"

// Message is a message from a client.
type Message struct {
	Type     string `json:"type"`
	Data     string `json:"data,omitempty"`
	Encoding string `json:"encoding,omitempty"` // "base64"; empty for text
	Signal   string `json:"signal,omitempty"`
	Rows     uint16 `json:"rows,omitempty"`
	Cols     uint16 `json:"cols,omitempty"`
	Seq      uint64 `json:"seq,omitempty"` // of the event that asks for input; 0: any
}

// The kinds of lines and messages that are not events.
const (
	KindError = "error"
	KindAck   = "ack"
	KindGap   = "gap"
	// KindReceipt follows the result if the request asked for a receipt.
	KindReceipt = "receipt"
)

// Notice is a message of a stream that is not an event. It has no sequence number.
//
//	{"kind":"gap","from":7,"to":4711}    these events are no longer kept; those after them follow
//	{"kind":"error","problem":{…}}       there is no result, and this is why
type Notice struct {
	Kind    string          `json:"kind"`
	Problem *Problem        `json:"problem,omitempty"`
	From    uint64          `json:"from,omitempty"`
	To      uint64          `json:"to,omitempty"`
	Bytes   uint64          `json:"bytes,omitempty"`
	Receipt json.RawMessage `json:"receipt,omitempty"`
}

// NoticeOf reads a line as a Notice; it returns nil for an event.
func NoticeOf(line []byte) *Notice {
	var n Notice
	if json.Unmarshal(line, &n) != nil {
		return nil
	}
	switch n.Kind {
	case KindError, KindAck, KindGap, KindReceipt:
		return &n
	}
	return nil
}
