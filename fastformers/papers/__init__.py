"Published methods, each a page on the public extension points: imported by nothing, found by name"
