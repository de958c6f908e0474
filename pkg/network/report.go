package network

// Report is what a network did so far.
type Report struct {
	Refused      []Refused     `json:"refused,omitempty"`
	Destinations []Destination `json:"destinations,omitempty"`
	Lost         int           `json:"lost,omitempty"` // refusals and destinations that did not fit
}

// Refused is a name or a connection that was not allowed.
type Refused struct {
	Host     string `json:"host"`
	Port     uint16 `json:"port,omitempty"`
	Protocol string `json:"protocol"` // tcp, udp, dns
	Reason   string `json:"reason"`
	Allow    string `json:"allow,omitempty"` // the rule that would allow it
	Count    int    `json:"count"`
}

// Destination is how much went to a host.
type Destination struct {
	Host        string `json:"host"`
	Port        uint16 `json:"port"`
	Protocol    string `json:"protocol"`
	Connections int    `json:"connections"`
	Sent        int64  `json:"sent"`
	Received    int64  `json:"received"`
}

// Limits bound a network. Zero means no limit.
type Limits struct {
	Rate        int64 `json:"rate,omitempty"`        // bytes per second, both directions together
	Bytes       int64 `json:"bytes,omitempty"`       // in all, both directions together
	Connections int   `json:"connections,omitempty"` // open at a time
}
