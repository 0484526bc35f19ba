"""The pages of the dashboard; `register` of each module adds its pages."""
