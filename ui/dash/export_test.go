package dash

// MaxSubscribers is the bound of the live feed.
const MaxSubscribers = maxSubscribers
