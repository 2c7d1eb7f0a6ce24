"""Is ``protect()`` with no option as good as the same recipe, searched by hand?"""
