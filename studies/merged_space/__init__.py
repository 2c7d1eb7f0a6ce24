"""Is an adapter better held by its merged weights than by its factors?"""
